r"""The evidence against each rate that was rehearsed, from training losses on the same batches.

    against(r) = mean_i d_i / sqrt(D^2 + s^2 / n)        d_i = min(1, (L_i(r) - L_i(best)) / |L(best)|)

L_i(r) is the loss of batch i in the last third of the rehearsal at rate r, before the step on it; L(best) is the lowest
mean. s is the standard deviation of d_i over the n batches, so batches on which the rates differ in sign count little.
D is the smallest difference that counts. The batches are new to the network while the first epoch lasts, so these are
losses on held-out samples; on the development tasks they ranked rates as well as separate held-out batches did.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.tuning.rehearsal import Rehearsal

SMALLEST_DIFFERENCE = 0.03
# The loss of the best rate counts as at least this share of the first loss, where differences are taken relative to it.
_FLOOR = 0.1
_FEWEST = 2


@dataclass(frozen=True)
class RateEvidence:
    """The rates in rising order, and the evidence against each of them: 0 for the best."""

    rates: tuple[float, ...]
    against: tuple[float, ...]


def evidence(known: Sequence[Rehearsal]) -> RateEvidence | None:
    """The evidence of some rehearsals; None where all diverged.

    Example:
        >>> made = [Rehearsal(lr, 3, (2.0, 1.0 / lr, 1.0 / lr)) for lr in (1.0, 2.0)]
        >>> evidence(made).against
        (33.333333333333336, 0.0)
    """
    ordered = sorted(known, key=lambda each: each.lr)
    best = min(ordered, key=score)
    if best.diverged_at is not None or not best.losses:
        return None
    return RateEvidence(tuple(each.lr for each in ordered), tuple(_against(each, best) for each in ordered))


def score(rehearsal: Rehearsal) -> float:
    """The mean loss over the last third of a rehearsal; inf after a divergence."""
    if rehearsal.diverged_at is not None or not rehearsal.losses:
        return math.inf
    return last_loss(rehearsal.losses)


def last_loss(losses: Sequence[float]) -> float:
    """The mean loss over the last third of the steps.

    Example:
        >>> last_loss([9.0, 9.0, 9.0, 9.0, 2.0, 1.0])
        1.5
    """
    return _mean(window(losses))


def window(losses: Sequence[float]) -> Sequence[float]:
    """The losses in the last third of a rehearsal."""
    return losses[-max(_FEWEST, len(losses) // 3) :]


def _against(rehearsal: Rehearsal, best: Rehearsal) -> float:
    if rehearsal.diverged_at is not None:
        return 1.0 / SMALLEST_DIFFERENCE
    scale = max(abs(score(best)), _FLOOR * abs(best.first_loss))
    pairs = zip(window(rehearsal.losses), window(best.losses), strict=True)
    differences = [min(1.0, (own - least) / scale) if scale else 0.0 for own, least in pairs]
    mean, count = _mean(differences), len(differences)
    variance = sum((each - mean) ** 2 for each in differences) / max(1, count - 1)
    return max(0.0, mean) / math.sqrt(SMALLEST_DIFFERENCE**2 + variance / count)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
