"""NS112: BatchNorm normalizes by the statistics of the evaluation batch."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.passes import NotLooked
from normscope.diagnosis.registry import Found, rule


@rule("NS112", "train-mode-at-evaluation")
def train_mode_at_evaluation(look: Look) -> Iterator[Found]:
    """BatchNorm normalizes by the statistics of the evaluation batch.

    Either the layer keeps no running statistics (`track_running_stats=False`), or `model.eval()` does not reach it, or
    the forward switches it back.

    Why it hurts:
        The output for a sample depends on the samples that are evaluated beside it, on their order and number; a
        single sample cannot be evaluated.

    Threshold:
        None: after `model.eval()` the layer takes statistics of the batch, or it does not.

    Switch off:
        Statistics of each evaluation batch are wanted, as in adaptation at test time.

    Fails:
        norm = nn.BatchNorm1d(32, track_running_stats=False)
        setup = training(nn.Sequential(nn.Linear(64, 32), norm, nn.ReLU(), nn.Linear(32, 10)))

    Passes:
        setup = training(nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)))
    """
    without = [norm.name for norm in look.over_batch if not norm.tracks]
    try:
        switched = [name for name in look.training_at_evaluation if name not in without]
    except NotLooked:
        switched = []
    source = "https://discuss.pytorch.org/t/performance-highly-degraded-when-eval-is-activated/3323"
    if without:
        yield Found(
            "warning",
            f"{layers_in_words(without)} keeps no running statistics, so evaluation depends on the batch it comes in.",
            Evidence("layers without running statistics", len(without)),
            "nn.BatchNorm2d(channels, track_running_stats=True)",
            without,
            source=source,
        )
    if switched:
        yield Found(
            "warning",
            f"{layers_in_words(switched)} stays in train mode after model.eval(), and normalizes by the evaluation "
            "batch.",
            Evidence("layers in train mode at evaluation", len(switched)),
            "model.eval()  # and no .train() in the forward",
            switched,
            source=source,
        )
