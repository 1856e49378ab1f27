r"""The learning rate to start training with, from what is known of the initial network.

    measured             0.8 s_c with squared error, 0.1 s_c with cross-entropy
    by theory alone      0.5 eta*, for gradient descent

s_c is the critical step: the learning rate at which the loss along the coming update is back at its value here. The
shares are measured, not derived. With squared error training breaks off near s_c, with momentum and without, and not
near eta*, which on real data belongs to few samples or pixels: on an MLP with BatchNorm it was seen to train at 12
times eta* and to diverge at twice s_c. With cross-entropy nothing breaks off there, and with momentum of 0.9, or Adam,
what trains best is about a tenth. They were chosen with the ten tasks of the entry `advice` in sight (`normscope
reproduce`); `advice-held-out` tests them on others.
"""

import math

from normscope.observe.verdict import CROSS_ENTROPY, SQUARED

OF_CRITICAL_STEP = {SQUARED: 0.8, CROSS_ENTROPY: 0.1}
OF_THEORY = 0.5
# Points of test accuracy below the best of a grid, mean of seeds: the least and the largest over the tasks with a
# normalizer; a test compares them with what is stored.
COST = {SQUARED: (0.0, 9.9), CROSS_ENTROPY: (0.0, 9.9)}
COST_OF_THEORY = (0.0, 9.9)


def by_critical_step(critical: float, kind: str) -> float:
    """For gradient descent, with momentum or without, and Adam; nan where no step was found or the loss is another.

    Example:
        >>> by_critical_step(0.5, SQUARED), by_critical_step(math.inf, SQUARED)
        (0.4, nan)
    """
    return _share(critical, OF_CRITICAL_STEP.get(kind, math.nan))


def by_theory(eta_star: float) -> float:
    """For gradient descent, where nothing is measured."""
    return _share(eta_star, OF_THEORY)


def from_critical_step(critical: float, kind: str) -> str:
    """In words; empty where there is no such rate."""
    rate = by_critical_step(critical, kind)
    if math.isnan(rate):
        return ""
    low, high = COST[kind]
    return (
        f"To start training with: {rate:.3g}, {OF_CRITICAL_STEP[kind]:g} times the critical step {critical:.3g} "
        f"(from initial weights, with a normalizer, {_NAMES[kind]}: {low:.1f} to {high:.1f} points of test accuracy "
        "below the best of a grid)."
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
