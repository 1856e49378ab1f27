"""The search: which learning rates to rehearse, within a budget counted in gradient passes.

Rates lie on a ladder around the prior. The first wave rehearses the prior's rate and its two neighbours; each further
wave goes one rung beyond the best rate so far, until both neighbours of the best are known or the budget is spent.
Nothing here knows networks: a search is a function of the finished rehearsals, so it can be replayed from stored ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.tuning.rehearsal import Rehearsal

# The ratio of neighbouring rates.
RUNG = math.sqrt(10)
_LENGTHS = 5
_FEWEST_STEPS, _MOST_STEPS = 4, 200


@dataclass(frozen=True)
class Plan:
    """The plan of a search.

    start: the rate of rung 0. steps: steps of each rehearsal; 0 where the budget buys none. budget: gradient passes.
    judging: passes for judging one rehearsal on held-out batches.
    """

    start: float
    steps: int
    budget: float
    judging: float = 0.0

    @property
    def cost(self) -> float:
        """The passes of one rehearsal that does not diverge."""
        return self.steps + self.judging

    @property
    def most(self) -> float:
        """The most passes that the search can take."""
        return self.cost * math.floor(self.budget / self.cost) if self.steps else 0.0

    def rate(self, rung: int) -> float:
        """The learning rate of a rung."""
        return self.start * RUNG**rung

    def rung(self, rate: float) -> int:
        """The rung of a learning rate."""
        return round(math.log(rate / self.start) / math.log(RUNG))


def planned(start: float, budget: float, judging: float = 0.0) -> Plan:
    """The plan for a budget of gradient passes: about five rehearsals of equal length.

    Example:
        >>> planned(0.1, 50.0).steps, planned(0.1, 5.0).steps
        (10, 0)
    """
    steps = math.floor(budget / _LENGTHS - judging)
    return Plan(start, min(steps, _MOST_STEPS) if steps >= _FEWEST_STEPS else 0, budget, judging)


def score(rehearsal: Rehearsal) -> float:
    """The mean loss over the last third of a rehearsal, the same batches for all rates; inf after a divergence."""
    if rehearsal.diverged_at is not None or not rehearsal.losses:
        return math.inf
    last = rehearsal.losses[-max(1, len(rehearsal.losses) // 3) :]
    return sum(last) / len(last)


def next_wave(plan: Plan, known: Sequence[Rehearsal]) -> list[float]:
    """The rates to rehearse next, which can run side by side; empty when the search is over."""
    if not plan.steps:
        return []
    rungs = {plan.rung(each.lr): each for each in known}
    if not rungs:
        wanted = [0, 1, -1]
    else:
        best = min(rungs, key=lambda rung: (score(rungs[rung]), rung))
        wanted = [rung for rung in (best + 1, best - 1) if rung not in rungs]
    left = plan.budget - sum(each.passes for each in known)
    return [plan.rate(rung) for rung in wanted[: max(0, math.floor(left / plan.cost + 1e-9))]]
