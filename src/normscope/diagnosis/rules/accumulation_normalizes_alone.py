"""NS205: micro-batches of gradient accumulation that are normalized alone."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.between import noisy_layers
from normscope.diagnosis.look.costs import cost_of_noise
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule


@rule("NS205", "accumulation-normalizes-alone", needs=("batches",))
def accumulation_normalizes_alone(look: Look) -> Iterator[Found]:
    """Each micro-batch of gradient accumulation is normalized alone.

    Accumulation averages gradients, not statistics. 16 micro-batches of two are 16 batches of two for BatchNorm.

    Why it hurts:
        The noise of the statistics is that of the micro-batch, and the gradient is not the one of the whole batch.

    Threshold:
        A warning where at least 8 % of the variance is noise of a micro-batch's mean, half of the limit of NS202: a
        small convolutional network lost 3 points with 9 %, by micro-batches of two. In the development half of
        NormFaults the clean training has 0.3 %, the fault 99 %.

    Switch off:
        The noise is wanted as regularization.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, batches=list(zip(x.split(2), y.split(2))), accumulate=16)

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, accumulate=2)
    """
    accumulate = look.setup.accumulate
    found, limit = noisy_layers(look.start.trace, accumulate)
    if found and accumulate > 1:
        worst = max(found.values())
        yield Found(
            "warning",
            f"{layers_in_words(list(found))} normalizes each of {accumulate} micro-batches of {look.batch_size} alone, "
            f"and {worst:.0%} of the variance goes into the noise of their means.",
            Evidence("variance of a micro-batch's mean / variance", worst, limit=limit),
            "ns.swap_norms(model, 'group')  # or larger micro-batches with a smaller accumulate=",
            list(found),
            cost_of_noise(look),
            "https://github.com/andreped/GradientAccumulator/issues/6",
        )
