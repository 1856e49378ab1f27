r"""The learning rate to start training with, from what is known of the initial network.

    measured             0.8 s_c with squared error, with momentum no more than 0.5 eta*;  0.1 s_c with cross-entropy
    by theory alone      0.5 eta*, for gradient descent

s_c is the critical step: the learning rate at which the loss along the coming update is back at its value here. The
shares are measured, not derived. With squared error training breaks off near s_c and not near eta*, which on real data
often belongs to few samples or pixels: an MLP with BatchNorm was seen to train at 12 times eta* and to diverge at twice
s_c. Where eta* belongs to a direction in which all samples move alike, as in a CNN with BatchNorm, momentum gathers
what grows along it, and s_c is too far. With cross-entropy nothing breaks off at s_c, and with momentum of 0.9, or
Adam, what trains best is about a tenth.

The shares were chosen with the ten tasks of the entry `advice` in sight (`normscope reproduce`), and tested on ten
others, `advice-held-out`, where 0.8 s_c failed on one: the word on momentum is from there. `advice-held-out/settled`
tests the whole on five more.
"""

import math

from normscope.observe.verdict import CROSS_ENTROPY, SQUARED

OF_CRITICAL_STEP = {SQUARED: 0.8, CROSS_ENTROPY: 0.1}
OF_ETA_STAR = 0.5
# Points of test accuracy below the best of a grid, mean of seeds: the least and the largest over the tasks with a
# normalizer; a test compares them with what is stored.
COST = {SQUARED: (0.0, 9.9), CROSS_ENTROPY: (0.0, 9.9)}
COST_OF_THEORY = (0.0, 9.9)


def start_rate(critical: float, eta_star: float, kind: str, momentum: float) -> float:
    """For gradient descent and Adam (momentum 0, its bound is another); nan where there is none.

    Example:
        >>> start_rate(0.5, 0.6, SQUARED, 0.0), start_rate(0.5, 0.6, SQUARED, 0.9)
        (0.4, 0.3)
    """
    rate = by_critical_step(critical, kind)
    return min(rate, OF_ETA_STAR * eta_star) if kind == SQUARED and momentum else rate


def by_critical_step(critical: float, kind: str) -> float:
    """Its share; nan where no step was found or the loss is another.

    Example:
        >>> by_critical_step(0.5, SQUARED), by_critical_step(math.inf, SQUARED)
        (0.4, nan)
    """
    return _share(critical, OF_CRITICAL_STEP.get(kind, math.nan))


def by_theory(eta_star: float) -> float:
    """For gradient descent, where nothing is measured."""
    return _share(eta_star, OF_ETA_STAR)


def measured_advice(rate: float, critical: float, kind: str) -> str:
    """`start_rate` in words; empty where there is none."""
    if math.isnan(rate):
        return ""
    low, high = COST[kind]
    share = OF_CRITICAL_STEP[kind] if rate == by_critical_step(critical, kind) else None
    what = f"half of eta*, below the critical step {critical:.3g}"
    if share is not None:
        what = f"{share:g} times the critical step {critical:.3g}"
    return (
        f"To start training with: {rate:.3g}, {what} (from initial weights, with a normalizer, {_NAMES[kind]}: "
        f"{low:.1f} to {high:.1f} points of test accuracy below the best of a grid)."
    )


def from_theory(eta_star: float) -> str:
    """In words; empty where there is no such rate."""
    rate = by_theory(eta_star)
    if math.isnan(rate):
        return ""
    low, high = COST_OF_THEORY
    return (
        f"To start training with, if nothing is measured: {rate:.3g}, half of eta* (with a normalizer: {low:.1f} to "
        f"{high:.1f} points of test accuracy below the best of a grid)."
    )


def starting_rate(rate: float) -> str:
    """The end of a verdict.

    Example:
        >>> starting_rate(0.0432), starting_rate(math.nan)
        (' To start training with: 0.0432.', '')
    """
    return "" if math.isnan(rate) else f" To start training with: {rate:.3g}."


_NAMES = {SQUARED: "squared error", CROSS_ENTROPY: "cross-entropy"}


def _share(rate: float, share: float) -> float:
    return share * rate if 0 < rate < math.inf else math.nan
