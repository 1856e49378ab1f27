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


def _share(rate: float, share: float) -> float:
    return share * rate if 0 < rate < math.inf else math.nan
