r"""The learning rate to start training with, from what is known of the initial network.

    measured             0.8 s_c with squared error, with momentum no more than 0.5 eta*;  0.1 s_c with cross-entropy
    by theory alone      0.5 eta*, for gradient descent

s_c is the critical step: the learning rate at which the loss along the coming update is back at its value here. The
shares are measured, not derived. With squared error training breaks off near s_c and not near eta*, which on real data
often belongs to few samples or pixels: an MLP with BatchNorm was seen to train at 12 times eta* and to diverge at twice
s_c. With cross-entropy nothing breaks off there, and what trains best is about a tenth.

No curvature at the start sees what momentum does to small CNNs with squared error whose first outputs are far off: the
loss falls from the first step on, and the first steps leave most channels dead (84 % at half of eta*, 31 % at the best
rate). Nor a network whose output jumps, as GroupNorm over two values makes it.

The shares were chosen with the ten tasks of the entry `advice` in sight (`normscope reproduce`). Leaving out one task
at a time, the best share of s_c over the others is 0.85 each time with squared error, 0.08 to 0.11 with cross-entropy,
and costs the one left out at most 1.5 and 2.0 points; that of eta* moves by half and more, and costs up to 37. Training
breaks off near the best share, so a little less is taken with squared error. They were tested on ten other tasks,
`advice-held-out`, where 0.8 s_c lost 40 points on one: the half of eta* is from there. `advice-held-out/settled` tests
the whole on five more; it fails on two. COST keeps what all with a normalizer say.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

from normscope.observe.verdict import CROSS_ENTROPY, SQUARED

OF_CRITICAL_STEP = {SQUARED: 0.8, CROSS_ENTROPY: 0.1}
OF_ETA_STAR = 0.5
PLAIN, MOMENTUM, ADAM = "gradient descent", "momentum", "Adam"
# Tasks with a normalizer, and the points of test accuracy that they lost against the best of a grid, mean of seeds: in
# the median and at worst. A test compares them with what is stored.
COST = {
    (SQUARED, PLAIN): (3, 0.0, 0.4),
    (SQUARED, MOMENTUM): (7, 2.1, 36.9),
    (SQUARED, ADAM): (1, 0.5, 0.5),
    (CROSS_ENTROPY, PLAIN): (1, 0.6, 0.6),
    (CROSS_ENTROPY, MOMENTUM): (7, 1.7, 48.7),
    (CROSS_ENTROPY, ADAM): (4, 1.1, 1.2),
}
COST_OF_THEORY = {SQUARED: (10, 3.0, 41.9), CROSS_ENTROPY: (8, 0.5, 48.5)}
_BEARABLE = 2.0
# Seen with an MLP with tanh and none: eta* 0.74, 0.8 s_c 1.9, and nan within 200 steps of gradient descent.
_BEYOND = " It is beyond eta*: a network without a normalizer may diverge there; start such a one below eta*."


def kind_of_descent(optimizer: torch.optim.Optimizer | None, settings: Mapping[str, Any]) -> str:
    """Which of the three it is; empty where it is none of them. settings: of the group that is looked at."""
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return ADAM
    if optimizer is not None and not isinstance(optimizer, torch.optim.SGD):
        return ""
    return MOMENTUM if settings["momentum"] else PLAIN


def start_rate(critical: float, eta_star: float, kind: str, descent: str) -> float:
    """nan where no critical step was found, and for losses and optimizers that were not tried.

    Example:
        >>> start_rate(0.5, 0.6, SQUARED, PLAIN), start_rate(0.5, 0.6, SQUARED, MOMENTUM)
        (0.4, 0.3)
    """
    if (kind, descent) not in COST:
        return math.nan
    rate = by_critical_step(critical, kind)
    return min(rate, OF_ETA_STAR * eta_star) if (kind, descent) == (SQUARED, MOMENTUM) else rate


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


def measured_advice(critical: float, eta_star: float, kind: str, descent: str) -> str:
    """`start_rate` in words; empty where there is none."""
    rate = start_rate(critical, eta_star, kind, descent)
    if math.isnan(rate):
        return ""
    if rate == by_critical_step(critical, kind):
        what = f"{OF_CRITICAL_STEP[kind]:g} times the critical step {critical:.3g}"
    else:
        what = f"half of eta*, below the critical step {critical:.3g}"
    tested = _tested(f"{_NAMES[kind]}, {descent}", *COST[kind, descent])
    return f"To start training with: {rate:.3g}, {what}. {tested}{beyond(rate, eta_star, kind)}"


def beyond(rate: float, eta_star: float, kind: str) -> str:
    """The doubt that belongs to a rate beyond eta*; empty where there is none.

    Example:
        >>> beyond(0.1, 0.2, SQUARED), beyond(0.3, 0.2, SQUARED)[:21], beyond(0.3, 0.2, CROSS_ENTROPY)
        ('', ' It is beyond eta*: a', '')
    """
    return _BEYOND if kind == SQUARED and rate > eta_star else ""


def theory_advice(eta_star: float, kind: str) -> str:
    """`by_theory` in words; empty where there is none."""
    rate = by_theory(eta_star)
    if math.isnan(rate):
        return ""
    return f"To start training with: {rate:.3g}, half of eta*. {_tested(_NAMES[kind], *COST_OF_THEORY[kind])}"


def _tested(of: str, tasks: int, median: float, worst: float) -> str:
    on = "one task" if tasks == 1 else f"{tasks} tasks"
    told = f"From initial weights, on {on} with a normalizer ({of}), this cost {median:.1f} points of test "
    told += f"accuracy against a grid in the median and {worst:.1f} at worst"
    return told + ("." if worst <= _BEARABLE else ": try rates around it too.")


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
