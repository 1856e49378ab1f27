"""The rule of the first guess: a learning rate from the critical rate, eta*, the kind of the loss and the optimizer.

`first_guess.py` has the formulas and the reasons for them.
"""

import math

from normscope.loss_kinds import CROSS_ENTROPY, DIVERGES, SQUARED, beyond_limit
from normscope.stability.first_guess_evidence import COST, OF_CRITICAL_RATE, OF_ETA_STAR, WITHOUT_NORMALIZER
from normscope.stability.optimizer_rules import MOMENTUM


def rate_from_measurement(
    critical: float, eta_star: float, loss_kind: str, descent: str, normalized: bool = True
) -> float:
    """The rate to start with; nan where there is no critical rate, and for losses and optimizers not tried.

    Example:
        >>> [rate_from_measurement(0.5, 0.6, SQUARED, descent) for descent in ("gradient descent", MOMENTUM)]
        [0.4, 0.3]
        >>> rate_from_measurement(0.5, 0.25, SQUARED, "gradient descent", normalized=False)
        0.2
        >>> rate_from_measurement(0.5, 0.25, CROSS_ENTROPY, MOMENTUM, normalized=False)
        0.005
    """
    if (loss_kind, descent) not in COST:
        return math.nan
    rate = share_of(
        bounded_rate(critical, eta_star, loss_kind, normalized), measured_share(loss_kind, descent, normalized)
    )
    return min(rate, OF_ETA_STAR * eta_star) if (loss_kind, descent) == (SQUARED, MOMENTUM) else rate


def share_of_critical_rate(critical: float, loss_kind: str) -> float:
    """A share of the critical rate; nan where there is none or the loss is another.

    Example:
        >>> share_of_critical_rate(0.5, SQUARED), share_of_critical_rate(math.inf, SQUARED)
        (0.4, nan)
    """
    return share_of(critical, OF_CRITICAL_RATE.get(loss_kind, math.nan))


def measured_share(loss_kind: str, descent: str, normalized: bool) -> float:
    """The share of the critical rate that was measured for this kind of loss and optimizer."""
    if loss_kind == CROSS_ENTROPY and not normalized:
        return WITHOUT_NORMALIZER[descent]
    return OF_CRITICAL_RATE[loss_kind]


def rate_from_theory(eta_star: float) -> float:
    """The rate for gradient descent where only eta* of the theory is known: half of it."""
    return share_of(eta_star, OF_ETA_STAR)


def bounded_rate(critical: float, eta_star: float, loss_kind: str, normalized: bool) -> float:
    """The critical rate, but no more than eta* where a network without a normalizer diverges beyond eta*."""
    # Measured with an MLP with tanh and without a normalizer: eta* 0.74, 0.8 s_c 1.9, nan within 200 steps at 1.9.
    if normalized or beyond_limit(loss_kind) != DIVERGES or not 0 < critical < math.inf:
        return critical
    return min(critical, eta_star)


def share_of(rate: float, share: float) -> float:
    """The share of a rate; nan for a rate that is zero, infinite or nan."""
    return share * rate if 0 < rate < math.inf else math.nan
