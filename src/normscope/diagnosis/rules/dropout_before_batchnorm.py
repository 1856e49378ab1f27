"""NS107: dropout before a BatchNorm."""

import math
from collections.abc import Iterator

from normscope.diagnosis.finding import Cost, Evidence, layers_in_words
from normscope.diagnosis.look.costs import cost_of_dropout
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

# Ratio of the variance in training to that in evaluation, as |logarithm|.
SHIFT = 0.3
# Cost as a share of the loss before training.
COSTS = 0.05


@rule("NS107", "dropout-before-batchnorm", needs=("batches",))
def dropout_before_batchnorm(look: Look) -> Iterator[Found]:
    """Dropout before a BatchNorm gives it another variance in training than in evaluation.

    Dropout with probability p keeps the mean and multiplies the second moment by 1 / (1 - p). The running variance of a
    BatchNorm behind it is that of training; in evaluation dropout is off and the variance is smaller.

    Why it hurts:
        In evaluation every such layer gives outputs that are too small, and the errors multiply along depth.

    Threshold:
        A warning where the median |logarithm of the ratio of variances| with and without dropout is above 0.3 (a factor
        of 1.35) in some layer behind a dropout, and costs at least 5 % of the first loss after a short training; a
        note otherwise. A dropout of 0.1 gives 0.1, one of 0.5 about 0.7. The fault in the development half of
        NormFaults has 1.6 and costs 36 % to 76 %.

    Switch off:
        The statistics are computed again in eval mode.

    Fails:
        layers = nn.Linear(64, 32), nn.Dropout(0.5), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
        setup = training(nn.Sequential(*layers))

    Passes:
        layers = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10)
        setup = training(nn.Sequential(*layers))
    """
    trace = look.start.trace
    behind = [norm.name for norm in look.over_batch if norm.tracks and look.dropouts_before(trace, norm.name)]
    behind = [name for name in behind if name in trace.inputs and any(call.training for call in trace.inputs[name])]
    if not behind:
        return
    with_it, without = look.population_with_dropout, look.population_at_start
    shifts = {}
    for name in behind:
        if name in with_it and name in without:
            one, other = with_it[name][1].double(), without[name][1].double()
            live = (one > 1e-12) & (other > 1e-12)
            if bool(live.any()):
                shifts[name] = float((one[live] / other[live]).log().median())
    if not shifts:
        return
    worst = max(shifts, key=lambda name: abs(shifts[name]))
    cost = cost_of_dropout(look) if abs(shifts[worst]) > SHIFT else Cost()
    large = abs(shifts[worst]) > SHIFT and not cost.share < COSTS
    yield Found(
        "warning" if large else "note",
        f"Dropout comes before {layers_in_words(list(shifts))}, whose input has {math.exp(shifts[worst]):.2f} times "
        "the variance in training that it has in evaluation.",
        Evidence("|log variance with dropout / without|", abs(shifts[worst]), limit=SHIFT),
        "nn.Sequential(linear, nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(p), head)  # after the last BatchNorm",
        list(shifts),
        cost,
        "Li et al. 2018, Understanding the disharmony between dropout and batch normalization",
    )
