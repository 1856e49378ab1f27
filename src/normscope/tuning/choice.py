"""The choice: the learning rate to name, from the prior and what the rehearsals showed."""

from collections.abc import Sequence
from dataclasses import dataclass

from normscope.tuning.prior import Prior
from normscope.tuning.rehearsal import Rehearsal
from normscope.tuning.search import RUNG, Plan, score

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
    if not known:
        return Choice(
            prior.rate, _around(prior.rate), f"Nothing was rehearsed, so this is {prior.words}: the budget buys too few"
            " steps."
        )  # fmt: skip
    best = min(known, key=score)
    if not falls(best):
        seen = "; ".join(said(each) for each in sorted(known, key=lambda each: each.lr))
        rate = min([prior.rate, *(each.lr / RUNG for each in known if each.diverged_at is not None)])
        return Choice(
            rate,
            _around(rate),
            f"The loss fell at none of the rates tried ({seen}), so this is {prior.words}, or below the rates that "
            "diverged. Check that the loss can fall: labels, inputs, a frozen network.",
        )
    rate = best.lr
    return Choice(rate, _around(rate), f"Of {len(known)} rates it had the lowest loss after {plan.steps} steps.")


def falls(rehearsal: Rehearsal) -> bool:
    """Whether the loss ended below its first value."""
    first = rehearsal.first_loss
    return score(rehearsal) < first - (1 - _FALLS) * abs(first)


def said(rehearsal: Rehearsal) -> str:
    """What a rehearsal showed, in words."""
    if rehearsal.diverged_at is not None:
        return f"{rehearsal.lr:.2g} diverged at step {rehearsal.diverged_at}"
    return f"{rehearsal.lr:.2g} went from {rehearsal.first_loss:.3g} to {score(rehearsal):.3g}"


def _around(rate: float) -> tuple[float, float]:
    return rate / 2, rate * 2
