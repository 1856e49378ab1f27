"""The search: which learning rates to rehearse, within a budget counted in gradient passes.

Rates lie on a ladder around the usual rate of the optimizer. The first wave rehearses that rate and its neighbours.
While the best rate so far is at an end of the ladder, and clearly better than its neighbour, the next rung follows.
Nothing here knows networks: a search is a function of the finished rehearsals, so it can be replayed from stored ones.

`benchmarks/tuning/calibrate.py` compares these numbers with others on development tasks of 500 to 2,000 steps.
Rehearsals of 8 to 16 steps serve best there; longer ones favour rates that diverge later.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.tuning.evidence import evidence
from normscope.tuning.rehearsal import Rehearsal

# The ratio of neighbouring rates, the rungs of the first wave, and the lead that is worth another rung.
RUNG = 4.0
FIRST_WAVE = (0, 1, -1)
LEAD = 1.0
# The share of the budget for one rehearsal, and its fewest and most steps.
SHARE, FEWEST_STEPS, MOST_STEPS = 1 / 6, 4, 16


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
    def passes(self) -> tuple[float, float]:
        """The passes of the search: of the first wave, and at most."""
        if not self.steps:
            return 0.0, 0.0
        return len(FIRST_WAVE) * self.cost, self.cost * math.floor(self.budget / self.cost)

    def rate(self, rung: int) -> float:
        """The learning rate of a rung."""
        return self.start * RUNG**rung

    def rung(self, rate: float) -> int:
        """The rung of a learning rate."""
        return round(math.log(rate / self.start) / math.log(RUNG))


def planned(start: float, budget: float, judging: float = 0.0) -> Plan:
    """The plan for a budget of gradient passes; without rehearsals where it does not buy a first wave.

    Example:
        >>> planned(0.1, 50.0).steps, planned(0.1, 100.0).steps, planned(0.1, 5.0).steps
        (8, 16, 0)
    """
    steps = max(FEWEST_STEPS, min(MOST_STEPS, math.floor(SHARE * budget + 1e-9)))
    affordable = len(FIRST_WAVE) * (steps + judging) <= budget
    return Plan(start, steps if affordable else 0, budget, judging)


def next_wave(plan: Plan, known: Sequence[Rehearsal]) -> list[float]:
    """The rates to rehearse next, which can run side by side; empty when the search is over."""
    if not plan.steps:
        return []
    if not known:
        return [plan.rate(rung) for rung in FIRST_WAVE]
    if plan.budget - sum(each.passes for each in known) < plan.cost:
        return []
    rungs = sorted(plan.rung(each.lr) for each in known)
    found = evidence(known)
    if found is None:
        return [plan.rate(rungs[0] - 1)]  # all diverged
    against = found.against
    if against[-1] == 0 and against[-2] > LEAD:
        return [plan.rate(rungs[-1] + 1)]
    if against[0] == 0 and against[1] > LEAD:
        return [plan.rate(rungs[0] - 1)]
    return []
