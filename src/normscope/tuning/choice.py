r"""The choice: the learning rate to name, from the usual rate and what the rehearsals showed.

    p(x) ~ exp(-against(x) - x^2 / 2),      x = log(rate / usual rate)
    lr = usual rate * exp(mean of x),       lr_range = lr * exp(+-0.8 sd of x), at least a factor of 2 either way

`against` is the evidence against a rate (`evidence.py`), linear in x between the rates that were tried. Beyond the
highest and lowest of them it goes on rising if it rises there, and is constant otherwise. Where the rehearsals cannot
tell rates apart, lr is the usual rate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from normscope.tuning.evidence import RateEvidence, evidence, score
from normscope.tuning.prior import Prior
from normscope.tuning.rehearsal import Rehearsal
from normscope.tuning.search import RATIO, Plan

# The width of the prior in x, and of the range in standard deviations of x with its least and most.
WIDTH = 1.0
RANGE, NARROWEST, WIDEST = 0.8, math.log(2.0), math.log(4.0)
_GRID = np.linspace(-12.0, 12.0, 961)
# Evidence below this does not tell a rate from the best one.
_TELLS = 1.0
# A loss that ends above this share of its first value did not fall.
_FALLS = 0.999


@dataclass(frozen=True)
class Choice:
    """The rate, the range of rates that cannot be told apart from it, and the reason in a sentence."""

    lr: float
    lr_range: tuple[float, float]
    reason: str


def choose(plan: Plan, prior: Prior, known: Sequence[Rehearsal]) -> Choice:
    """The rate to name after the search."""
    found = evidence(known) if known else None
    lr, spread = _posterior(prior.rate, found)
    if known and found is None:
        lr = min(each.lr for each in known) / RATIO
    half = min(max(RANGE * spread, NARROWEST), WIDEST)
    low, high = lr * math.exp(-half), lr * math.exp(half)
    diverged = [each.lr for each in known if each.diverged_at is not None and each.lr > lr]
    return Choice(lr, (low, min([high, *(0.99 * each for each in diverged)])), _reason(plan, prior, known, found))


def _posterior(usual: float, found: RateEvidence | None) -> tuple[float, float]:
    """The rate, and the standard deviation of its logarithm."""
    exponent = -0.5 * (_GRID / WIDTH) ** 2
    if found is not None:
        exponent -= _against(np.log(np.asarray(found.rates) / usual), np.asarray(found.against))
    weights = np.exp(exponent - exponent.max())
    weights /= weights.sum()
    mean = float(weights @ _GRID)
    return usual * math.exp(mean), math.sqrt(float(weights @ (_GRID - mean) ** 2))


def _against(x: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The evidence against each rate of the grid."""
    values = np.interp(_GRID, x, known)
    if len(x) > 1:
        up = max(0.0, (known[-1] - known[-2]) / (x[-1] - x[-2]))
        down = max(0.0, (known[0] - known[1]) / (x[1] - x[0]))
        values += up * np.maximum(0.0, _GRID - x[-1]) + down * np.maximum(0.0, x[0] - _GRID)
    return np.asarray(values)


def _reason(plan: Plan, prior: Prior, known: Sequence[Rehearsal], found: RateEvidence | None) -> str:
    if not known:
        return f"Nothing was rehearsed, so this is {prior.words}: the budget of {plan.budget:.0f} steps buys too few."
    if found is None:
        return f"Every rate that was tried diverged ({seen(known)}): a quarter of the lowest. Try rates below it."
    best = min(known, key=score)
    if not falls(best):
        return (
            f"The loss fell at none of the rates that were tried ({seen(known)}), so this is near {prior.words}. Many "
            "networks leave their first plateau later; if yours never does, check labels, inputs and frozen layers."
        )
    if max(found.against) < _TELLS:
        return (
            f"After {plan.steps} steps the losses (means of the last third) differ by less than their noise "
            f"({seen(known)}), so this is near {prior.words}."
        )
    text = (
        f"After {plan.steps} steps on the same batches the loss (mean of the last third) was lowest at {best.lr:.2g} "
        f"({seen(known)}); weighed against {prior.words}, {prior.rate:.2g}."
    )
    if best.lr in (found.rates[0], found.rates[-1]):
        text += f" It was the {'lowest' if best.lr == found.rates[0] else 'highest'} rate that the budget bought."
    return text


def falls(rehearsal: Rehearsal) -> bool:
    """Whether the loss ended below its first value."""
    first = rehearsal.first_loss
    return score(rehearsal) < first - (1 - _FALLS) * abs(first)


def seen(known: Sequence[Rehearsal]) -> str:
    """The losses of the rehearsals, in words.

    Example:
        >>> seen([Rehearsal(0.1, 2, (2.0, 1.0)), Rehearsal(0.4, 2, (2.0,), 1)])
        'from 2 to 1.5 at 0.1; 0.4 diverged at step 1'
    """
    ordered = sorted(known, key=lambda each: each.lr)
    lasts = [f"{score(each):.3g} at {each.lr:.2g}" for each in ordered if each.diverged_at is None]
    parts = [f"from {ordered[0].first_loss:.3g} to {', '.join(lasts)}"] if lasts else []
    parts += [f"{each.lr:.2g} diverged at step {each.diverged_at}" for each in ordered if each.diverged_at is not None]
    return "; ".join(parts)
