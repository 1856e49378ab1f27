"""NS202: batch statistics that are too noisy at this batch size."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.between import noise_of_layers
from normscope.diagnosis.look.costs import cost_of_noise
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

_WHAT = "variance of a batch's mean / variance"


@rule("NS202", "small-batch-noise", needs=("batches",))
def small_batch_noise(look: Look) -> Iterator[Found]:
    """Batch statistics are too noisy at this batch size.

    The number is q, the variance of a batch's mean as a share of the variance of all values. It is 1 / (independent
    values per channel): 0.5 for two samples without space. A convolutional network averages each channel over all
    positions of an image as well, so the same batch may have far less: small CNNs on images of 8 x 8 had q = 0.01 to
    0.02 with two images a batch. They reached 96.7 to 98.6 % in eval mode, and 95.3 to 97.5 % with GroupNorm, so the
    rule is right to find nothing there. Accuracy in train mode, where the statistics are those of a small batch, may
    still be lower than in eval mode; it is not the accuracy of the trained network. Where neighbouring pixels are
    alike, images count for less, and q may be near 0.5 too.

    Why it hurts:
        Each sample is shifted and scaled by the other ones of its batch. Training fits that noise, and evaluation
        without it is another function.

    Threshold:
        A warning from q = 0.16 on, six independent values, and from 0.1 on where a batch has at most four samples. In
        the development half of NormFaults, clean trainings have q below 0.02; faults, which are batches of two and four
        in networks with few positions, have 0.23 to 1. A residual network on images of 28 x 28 has 0.05 with two images
        a batch, and trained better there with BatchNorm than with GroupNorm.

    Switch off:
        The noise is wanted as regularization.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, batches=list(zip(x.split(2), y.split(2))))

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model)
    """
    if look.setup.accumulate > 1:
        return  # NS205 judges micro-batches
    values, limit = noise_of_layers(look.start.trace)
    look.saw("NS202", _WHAT, values.values(), limit)
    found = {name: value for name, value in values.items() if value >= limit}
    if not found:
        return
    worst, calls = max(found.values()), look.start.trace.inputs[max(found, key=found.__getitem__)]
    shared = calls[0].samples < look.batch_size
    of = f" in shares of {calls[0].samples} of a batch of {look.batch_size}" if shared else ""
    yield Found(
        "warning",
        f"{layers_in_words(list(found))} normalizes by the statistics of {calls[0].samples} samples{of}, and "
        f"{worst:.0%} of the variance goes into the noise of their mean.",
        Evidence(_WHAT, worst, limit=limit),
        "ns.swap_norms(model, 'group')  # or a larger batch, or nn.SyncBatchNorm.convert_sync_batchnorm(model)",
        list(found),
        cost_of_noise(look),
        "https://github.com/pytorch/pytorch/issues/2584",
    )
