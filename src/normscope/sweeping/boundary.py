r"""The line between training that converges and training that diverges, and how far theory is from it.

For each value of the axis, over the learning rates trained there:

    survives      the largest rate up to which every seed survived, without a gap
    diverges      the next rate: the first at which some seed diverged
    eta           sqrt(survives diverges), known to +- half of log10(diverges / survives) decades
    any_survives  the largest rate at which at least one seed survived
    rises         the smallest rate from which on, at every rate, the loss of some seed rose above its start after the
                  first steps (`settling`); rises at smaller rates come from differences between batches
    best          the rate with the smallest test loss, averaged over the seeds, if all of them survived

The distance of a prediction or measurement is log10(eta / eta*), positive if training survives beyond its eta*.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from statistics import median

from normscope.sweeping.outcome import Outcome
from normscope.sweeping.plan import Cell, Plan


@dataclass(frozen=True)
class Edge:
    """The boundary at one value of the axis; nan if the grid does not reach it.

    Attributes:
        value: the value of the axis.
        survives: the largest learning rate below which every seed of every rate survived.
        diverges: the next learning rate of the grid, at which a seed diverged.
        any_survives: the largest learning rate at which any seed survived.
        any_resolution: half the distance from any_survives to the next rate above, in decades.
        rises: the smallest learning rate from which on a loss was above its start.
        rises_resolution: half the distance from rises to the next rate below, in decades.
        best: the learning rate with the smallest test loss.
        best_test_loss: the test loss at that rate.
        best_resolution: half the mean distance from best to its two neighbours, in decades.
        gaps: the number of rates above `survives` at which all seeds survived again.
    """

    value: float
    survives: float
    diverges: float
    any_survives: float
    any_resolution: float
    rises: float
    rises_resolution: float
    best: float
    best_test_loss: float
    best_resolution: float
    gaps: int

    @property
    def eta(self) -> float:
        """The geometric mean of the two rates that enclose the boundary."""
        return math.sqrt(self.survives * self.diverges)

    @property
    def resolution(self) -> float:
        """Half the distance, in decades, between the two rates that enclose the boundary."""
        return 0.5 * math.log10(self.diverges / self.survives)


@dataclass(frozen=True)
class Distance:
    """The distance of a line from the boundary, in decades (factors of ten): log10(eta / eta*).

    Attributes:
        name: the name of the line.
        by_value: the distance at each value, in decades.
        median: the median of all values, in decades.
        worst: the distance of largest size, in decades.
        best: log10(best rate / eta*) at each value, in decades.
        n: the number of values at which both the line and the boundary are known.
    """

    name: str
    by_value: dict[float, float]
    median: float
    worst: float
    best: dict[float, float]
    n: int


def edges(outcomes: Iterable[Outcome]) -> list[Edge]:
    """The boundary at every value, by rising value."""
    by_value: dict[float, dict[float, list[Outcome]]] = {}
    for outcome in outcomes:
        by_value.setdefault(outcome.cell.value, {}).setdefault(outcome.cell.lr, []).append(outcome)
    return [_edge(value, dict(sorted(by_value[value].items()))) for value in sorted(by_value)]


def _edge(value: float, by_rate: dict[float, list[Outcome]]) -> Edge:
    rates = list(by_rate)
    whole = [rate for rate in rates if all(outcome.survived for outcome in by_rate[rate])]
    unbroken = [rate for rate, _ in takewhile(lambda pair: pair[0] == pair[1], zip(rates, whole, strict=False))]
    some = [rate for rate in rates if any(outcome.survived for outcome in by_rate[rate])]
    calm = [i for i, rate in enumerate(rates) if all(outcome.rose_at is None for outcome in by_rate[rate])]
    risen = rates[calm[-1] + 1 :] if calm else rates
    tests = {rate: _mean(outcome.test_loss[-1] for outcome in by_rate[rate]) for rate in whole}
    tests = {rate: loss for rate, loss in tests.items() if math.isfinite(loss)}
    best = min(tests, key=lambda rate: tests[rate]) if tests else math.nan
    return Edge(
        value=value,
        survives=unbroken[-1] if unbroken else math.nan,
        diverges=rates[len(unbroken)] if len(unbroken) < len(rates) else math.nan,
        any_survives=some[-1] if some else math.nan,
        any_resolution=_spacing(rates, some[-1:], above=True),
        rises=risen[0] if risen else math.nan,
        rises_resolution=_spacing(rates, risen[:1], below=True),
        best=best,
        best_test_loss=tests.get(best, math.nan),
        best_resolution=_spacing(rates, [best] if tests else [], above=True, below=True),
        gaps=len(whole) - len(unbroken),
    )


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _spacing(rates: list[float], rate: list[float], *, above: bool = False, below: bool = False) -> float:
    """Half the distance, in decades, from a rate to its neighbours above and below (the mean of both).

    `rate` holds one rate or none; nan if there is no rate or no neighbour.
    """
    places = [rates.index(only) for only in rate]
    near = [0.5 * math.log10(rates[i] / rates[i - 1]) for i in places if below and i > 0]
    near += [0.5 * math.log10(rates[i + 1] / rates[i]) for i in places if above and i + 1 < len(rates)]
    return sum(near) / len(near) if near else math.nan


def distance(name: str, boundary: Iterable[Edge], line: Mapping[float, float]) -> Distance:
    """The distance of the boundary from a line given as value -> eta*; values without a positive eta* are left out."""
    listed = [edge for edge in boundary if 0 < line.get(edge.value, 0) < math.inf]
    apart = {e.value: math.log10(e.eta / line[e.value]) for e in listed if math.isfinite(e.eta)}
    best = {e.value: math.log10(e.best / line[e.value]) for e in listed if math.isfinite(e.best)}
    return Distance(
        name=name,
        by_value=apart,
        median=median(apart.values()) if apart else math.nan,
        worst=max(apart.values(), key=abs) if apart else math.nan,
        best=best,
        n=len(apart),
    )


def refinement(plan: Plan, outcomes: Iterable[Outcome]) -> list[Cell]:
    """The cells of the first round of bisection that is not complete: half way, in decades, between enclosing rates.

    The rounds are repeated from the grid on. So an interrupted sweep continues the round in which it stopped, and does
    not start a round that depends on which cells happen to be done.
    """
    done = {outcome.cell: outcome for outcome in outcomes}
    known = {cell: done[cell] for cell in plan.cells()}
    while True:
        middles = [cell for cell in _middles(plan, known.values()) if cell not in known]
        if not done.keys() >= set(middles) or not middles:
            return middles
        known |= {cell: done[cell] for cell in middles}


def _middles(plan: Plan, outcomes: Iterable[Outcome]) -> list[Cell]:
    """New cells between enclosing rates that are more than `bisect` decades apart; rates have twelve digits."""
    halfway = []
    for edge in edges(outcomes):
        if math.log10(edge.diverges / edge.survives) > plan.bisect * (1 + 1e-9):
            halfway += [Cell(float(f"{edge.eta:.12g}"), edge.value, seed) for seed in plan.seeds]
    return halfway
