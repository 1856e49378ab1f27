"""The search: which learning rates to rehearse, within a budget counted in gradient passes.

The rates tried are the usual rate of the optimizer times powers of 4. The first wave rehearses the usual rate and its
two neighbours. While the best rate so far is the highest or the lowest one tried, and clearly better than its
neighbour, the next rate beyond it is rehearsed.

Nothing here knows networks: a search is a function of the finished rehearsals, so it can be replayed from stored ones.

`benchmarks/tuning/calibrate.py` compares these numbers with others on development tasks of 500 to 2,000 steps.
Rehearsals of 8 to 16 steps serve best there; longer ones favour rates that diverge later.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.tuning.evidence import evidence
from normscope.tuning.rehearsal import Rehearsal

# The ratio of neighbouring rates; the powers of the first wave; the lead of a best rate that is worth one more rate.
RATIO = 4.0
FIRST_WAVE = (0, 1, -1)
LEAD = 1.0
# The search ends a million times above or below the usual rate.
_FARTHEST = 10
# The share of the budget for one rehearsal, and its fewest and most steps.
SHARE, FEWEST_STEPS, MOST_STEPS = 1 / 6, 4, 16


@dataclass(frozen=True)
class Plan:
    """The plan of a search.

    start: the usual rate, whose place is 0. steps: steps of each rehearsal; 0 where the budget buys none. budget: of
    the search, in gradient passes. judging: passes for judging one rehearsal on held-out batches.
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
        return len(FIRST_WAVE) * self.cost, self.budget

    def rate(self, place: int) -> float:
        """The learning rate at a place: start times RATIO to this power."""
        return self.start * RATIO**place

    def place(self, rate: float) -> int:
        """The place of a learning rate that was rehearsed."""
        return round(math.log(rate / self.start) / math.log(RATIO))


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
        return [plan.rate(place) for place in FIRST_WAVE]
    places = sorted(plan.place(each.lr) for each in known)
    left = plan.budget - sum(each.passes for each in known)
    if left < plan.cost or _FARTHEST in (places[-1], -places[0]):
        return []
    found = evidence(known)
    if found is None:
        return [plan.rate(places[0] - 1)]  # all diverged
    against = found.against
    if against[-1] == 0 and against[-2] > LEAD:
        return [plan.rate(places[-1] + 1)]
    if against[0] == 0 and against[1] > LEAD:
        return [plan.rate(places[0] - 1)]
    return []
