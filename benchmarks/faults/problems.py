"""The problems that NormFaults asks for, by name.

The list was written before any rule of a diagnoser. A tool that uses other names maps them to these once, before it
sees a case; `aliases` are the names that need no such map.

severity is the least that counts: a finding of a fault case must be at least a warning. A problem of severity "note" is
in the list so that tools can name it, and no fault case has it.
"""

from dataclasses import dataclass

SEVERITIES = ("note", "warning", "error")


@dataclass(frozen=True)
class Problem:
    """One kind of fault.

    text: one sentence. severity: the severity to expect. fix: the class of fixes that count as right, as a sentence a
    reader of the finding must be able to act on. aliases: other names of the problem. data: whether the problem shows
    in data only, and not in the configuration.
    """

    text: str
    severity: str
    fix: str
    aliases: tuple[str, ...] = ()
    data: bool = False


PROBLEMS: dict[str, Problem] = {
    # Configuration.
    "momentum-inverted": Problem(
        "BatchNorm's momentum follows another framework's convention, so the running statistics are those of the last "
        "batch.",
        "warning",
        "1 - momentum in the place of momentum, or statistics of many batches before evaluation",
        ("momentum-too-large", "momentum-convention"),
    ),
    "momentum-too-small": Problem(
        "BatchNorm's momentum is so small that the running statistics do not settle within the planned steps.",
        "warning",
        "a larger momentum, more steps, or statistics of many batches before evaluation",
        ("unsettled-running-statistics",),
    ),
    "eps-against-variance": Problem(
        "A normalizer's eps is not small against the variance to which it is added, or is lost in the dtype.",
        "warning",
        "a smaller eps, a larger scale of the input, or statistics in float32",
        ("eps-too-large", "eps-too-small", "eps-against-dtype"),
    ),
    "weight-decay-on-scales": Problem(
        "Weight decay pulls the scales and shifts of normalizers to zero.",
        "warning",
        "no weight decay for parameters of normalizers",
        ("decay-on-norms",),
    ),
    "bias-before-normalizer": Problem(
        "A bias right before a normalizer that subtracts the mean does nothing.",
        "note",
        "bias=False",
        ("redundant-bias",),
    ),
    "normalizer-after-normalizer": Problem(
        "A normalizer follows a normalizer with no layer between them.",
        "note",
        "one of the two",
        ("double-normalization",),
    ),
    "dropout-before-batchnorm": Problem(
        "Dropout before a BatchNorm gives it another variance in training than in evaluation.",
        "warning",
        "dropout after the last BatchNorm, or a normalizer without running statistics",
        ("variance-shift", "batchnorm-after-dropout"),
    ),
    "one-value-groups": Problem(
        "A normalizer takes statistics over one value, so its output does not depend on its input.",
        "error",
        "fewer groups, or a normalizer over more values",
        ("groups-of-one", "constant-output"),
    ),
    "last-batch-of-one": Problem(
        "The last batch of an epoch has one sample, whose batch statistics mean nothing.",
        "warning",
        "drop_last=True, or another batch size",
        ("batch-of-one",),
    ),
    "parameters-not-in-optimizer": Problem(
        "The optimizer does not hold parameters of normalizers that are meant to train.",
        "warning",
        "all trained parameters in the optimizer",
        ("untrained-scales", "scales-not-in-optimizer"),
    ),
    "eval-mode-in-training": Problem(
        "BatchNorm trains its scales in eval mode, so nothing normalizes while the weights move.",
        "warning",
        "train mode, or frozen scales and shifts as well",
        ("half-frozen-batchnorm", "trainable-scales-in-eval-mode"),
    ),
    "train-mode-at-evaluation": Problem(
        "BatchNorm normalizes by the statistics of the evaluation batch.",
        "warning",
        "running statistics at evaluation: track_running_stats=True and model.eval()",
        ("no-running-statistics", "track-running-stats-false"),
    ),
    "statistics-move-in-frozen-backbone": Problem(
        "Parameters are frozen, and the running statistics between them still follow the new data.",
        "warning",
        "eval mode for the frozen normalizers",
        ("half-frozen-batchnorm", "frozen-parameters-moving-statistics"),
    ),
    "scales-train-in-frozen-backbone": Problem(
        "The normalizers of a backbone that is frozen otherwise still train their scales.",
        "warning",
        "frozen scales and shifts, or a backbone that trains",
        ("half-frozen-batchnorm",),
    ),
    "unsynchronized-statistics": Problem(
        "Each process of a distributed training normalizes its small share of the batch alone.",
        "warning",
        "SyncBatchNorm, larger shares, or a normalizer per sample",
        ("missing-sync-batchnorm",),
    ),
    "zero-scale-without-skip": Problem(
        "A scale starts at zero where no skip connection carries the signal.",
        "error",
        "scale 1, or a skip connection around the block",
        ("zero-init-without-skip", "dead-scales"),
    ),
    # Data.
    "stale-running-statistics": Problem(
        "The running statistics are not those of the activations that they normalize at evaluation.",
        "error",
        "population statistics of training data, and the cause of the stale ones removed",
        ("wrong-running-statistics", "train-eval-gap"),
        data=True,
    ),
    "small-batch-noise": Problem(
        "Batch statistics are too noisy at this batch size.",
        "warning",
        "a larger batch, synchronized statistics, or a normalizer per sample such as GroupNorm",
        ("batch-too-small", "noisy-batch-statistics"),
        data=True,
    ),
    "shifted-evaluation-data": Problem(
        "Evaluation data have another distribution than the training data whose statistics normalize them.",
        "warning",
        "the same preprocessing, or statistics of the evaluation domain",
        ("domain-shift", "train-eval-shift"),
        data=True,
    ),
    "batches-differ": Problem(
        "Batches differ from one another by more than chance: sorted data, or one domain a batch.",
        "warning",
        "shuffled batches that mix all kinds, or statistics for each domain",
        ("sorted-batches", "unshuffled-batches", "domains-in-separate-batches"),
        data=True,
    ),
    "accumulation-normalizes-alone": Problem(
        "Each micro-batch of gradient accumulation is normalized alone.",
        "warning",
        "larger micro-batches, or a normalizer per sample such as GroupNorm",
        ("micro-batch-statistics", "small-micro-batches"),
        data=True,
    ),
    "averaged-weights-foreign-buffers": Problem(
        "Averaged weights are evaluated with running statistics that are not theirs.",
        "error",
        "running statistics computed for the averaged weights, or averaged and copied with them",
        ("ema-buffers", "swa-without-update-bn"),
        data=True,
    ),
    "samples-see-each-other": Problem(
        "Samples see each other through batch statistics, and the loss falls by that instead of by learning.",
        "warning",
        "shuffled or synchronized statistics, or a normalizer per sample",
        ("batch-leak", "information-leak"),
        data=True,
    ),
    "constant-channels": Problem(
        "A channel is constant or nearly constant, and the normalizer multiplies what is left of it by 1/sqrt(eps).",
        "warning",
        "the channel left out, a larger eps, or a fixed scale",
        ("nearly-constant-channels", "amplified-channels"),
        data=True,
    ),
    "dead-channels": Problem(
        "Channels give zero for every sample, or have a scale of zero that cannot grow.",
        "warning",
        "scales and shifts set anew, or a smaller rate that does not kill them",
        ("dead-scales", "dead-relu"),
        data=True,
    ),
    "gradients-explode": Problem(
        "Gradients grow along depth at the start.",
        "error",
        "skip connections, fewer layers, or another normalizer or initialization",
        ("exploding-gradients", "gradients-along-depth"),
        data=True,
    ),
    "gradients-vanish": Problem(
        "Gradients vanish along depth at the start.",
        "error",
        "normalizers, skip connections, or another initialization",
        ("vanishing-gradients", "gradients-along-depth"),
        data=True,
    ),
    "rate-beyond-limit": Problem(
        "The learning rate is beyond the stability limit or the critical rate.",
        "error",
        "a smaller learning rate, or a warm-up to it",
        ("learning-rate-too-large", "unstable-learning-rate"),
        data=True,
    ),
    "old-rate-after-swap": Problem(
        "A normalizer was swapped or removed, and the learning rate of the old one was kept.",
        "warning",
        "the learning rate tuned again",
        ("normalizer-swapped-old-rate",),
        data=True,
    ),
    "attention-logits-grow": Problem(
        "Attention logits are or become so large that attention looks at one position.",
        "warning",
        "a normalizer on queries and keys, or a smaller rate",
        ("no-qk-norm", "attention-entropy-collapse"),
        data=True,
    ),
    "residual-stream-grows": Problem(
        "The residual stream grows from block to block.",
        "warning",
        "a normalizer in each branch, or smaller branches",
        ("growing-residual-stream", "unnormalized-branches"),
        data=True,
    ),
    "loss-spike-ahead": Problem(
        "The preconditioned curvature is at its limit, and the loss is about to jump or jumps again and again.",
        "warning",
        "a smaller rate, warm-up, clipping, a smaller beta2 or a larger eps of Adam",
        ("loss-spikes", "adam-instability"),
        data=True,
    ),
    "statistics-in-low-precision": Problem(
        "A normalizer computes its statistics in low precision, and they differ from those in float32.",
        "error",
        "statistics in float32",
        ("low-precision-statistics",),
        data=True,
    ),
    "folding-changes-output": Problem(
        "Folding a normalizer or quantizing after it changes the output by more than it may.",
        "warning",
        "a scale for each channel, more bits, or the normalizer left unfolded",
        ("quantization-changes-output", "fold-mismatch"),
        data=True,
    ),
}


def problem_of(name: str) -> tuple[str, ...]:
    """The problems that a tool's name stands for: the key itself, or the keys that have it as an alias."""
    if name in PROBLEMS:
        return (name,)
    return tuple(key for key, problem in PROBLEMS.items() if name in problem.aliases)
