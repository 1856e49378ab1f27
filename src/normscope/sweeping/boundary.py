r"""The line between training that converges and training that diverges, and how far theory is from it.

For each value of the axis, over the learning rates trained there:

    survives      the largest rate up to which every seed survived, without a gap
    diverges      the next rate: the first at which some seed diverged
    eta           sqrt(survives diverges), known to +- half of log10(diverges / survives) decades
    any_survives  the largest rate at which at least one seed survived
    rises         the rate from which on some seed's loss rose above its start after the first steps (`settling`); a
                  rate that is so small that batches differ by more than training gains is none
    best          the rate of least test loss, averaged over seeds that all survived

The distance of a rung is log10(eta / eta*), positive where training survives beyond what the rung says.
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
    """The boundary at one value of the axis; nan where the grid does not reach it.

    resolution: half the distance, in decades, of the two rates that enclose it; any_resolution, rises_resolution and
    best_resolution: half the distance of those rates to the next one above, below, and on either side (the mean).
    gaps: rates above `survives` at which all seeds survived again.
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
        return math.sqrt(self.survives * self.diverges)

    @property
    def resolution(self) -> float:
        return 0.5 * math.log10(self.diverges / self.survives)


@dataclass(frozen=True)
class Distance:
    """How far a line lies from the boundary, in decades: log10(eta / eta*), by value; median and worst by size.

    best: log10(best rate / eta*), by value. n: values at which both are known.
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
    for found in outcomes:
        by_value.setdefault(found.cell.value, {}).setdefault(found.cell.lr, []).append(found)
    return [_edge(value, dict(sorted(by_value[value].items()))) for value in sorted(by_value)]


def _edge(value: float, by_rate: dict[float, list[Outcome]]) -> Edge:
    rates = list(by_rate)
    whole = [rate for rate in rates if all(found.survived for found in by_rate[rate])]
    unbroken = [rate for rate, _ in takewhile(lambda pair: pair[0] == pair[1], zip(rates, whole, strict=False))]
    some = [rate for rate in rates if any(found.survived for found in by_rate[rate])]
    calm = [i for i, rate in enumerate(rates) if all(found.rose_at is None for found in by_rate[rate])]
    risen = rates[calm[-1] + 1 :] if calm else rates
    tests = {rate: _mean(found.test_loss[-1] for found in by_rate[rate]) for rate in whole}
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
    """Half the distance in decades of a rate from its neighbours, the mean of both; nan where it or they are not."""
    places = [rates.index(found) for found in rate]
    near = [0.5 * math.log10(rates[i] / rates[i - 1]) for i in places if below and i > 0]
    near += [0.5 * math.log10(rates[i + 1] / rates[i]) for i in places if above and i + 1 < len(rates)]
    return sum(near) / len(near) if near else math.nan


def distance(name: str, found: Iterable[Edge], line: Mapping[float, float]) -> Distance:
    """Of the boundary from a line given as value -> eta*; where that is no positive number, there is no distance."""
    listed = [edge for edge in found if 0 < line.get(edge.value, 0) < math.inf]
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
    """The first round of bisection that is not trained whole: half way, in decades, between the enclosing rates.

    Rounds are gone through from the grid on, so that a sweep that was interrupted in one goes on with that round, and
    not with one that would follow from those of its cells that happen to be done.
    """
    done = {found.cell: found for found in outcomes}
    known = {cell: done[cell] for cell in plan.cells()}
    while True:
        middles = [cell for cell in _middles(plan, known.values()) if cell not in known]
        if not done.keys() >= set(middles) or not middles:
            return middles
        known |= {cell: done[cell] for cell in middles}


def _middles(plan: Plan, outcomes: Iterable[Outcome]) -> list[Cell]:
    """Where the rates that enclose the boundary are too far apart; rates are told apart by twelve digits."""
    halfway = []
    for edge in edges(outcomes):
        if math.log10(edge.diverges / edge.survives) > plan.bisect * (1 + 1e-9):
            halfway += [Cell(float(f"{edge.eta:.12g}"), edge.value, seed) for seed in plan.seeds]
    return halfway
