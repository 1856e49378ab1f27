"""Methods side by side on one problem: seconds, gaps to the same best value, iterations to a target gap."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.messages.choices import check_choice
from normscope.solve.baselines import METHODS
from normscope.solve.iteration import Solution
from normscope.solve.problem import Problem

Array = NDArray[np.floating]


@dataclass(frozen=True)
class MethodRun:
    """One method's run. gap: F - best, one entry for each iterate. iterations: to `target`, None if never."""

    method: str
    solution: Solution
    gap: Array
    iterations: int | None
    seconds: float


@dataclass(frozen=True)
class Promise:
    """A quantity of GDNP's run that a theorem bounds, and the bound; one entry for each iterate."""

    name: str
    measured: Array
    bound: Array


@dataclass(frozen=True)
class Comparison:
    """entries: in the order asked. best: the lowest F that any method found, or the exact one where it is known.

    promise: None where mu is zero or unknown, or GDNP was not asked for.
    """

    entries: tuple[MethodRun, ...]
    best: float
    target: float
    promise: Promise | None
    notes: tuple[str, ...]


def compare(
    problem: Problem,
    methods: Sequence[str],
    *,
    max_iter: int,
    tol: float,
    target: float,
    exact: float | None = None,
    promise: Callable[[Solution], Promise | None],
    notes: Sequence[str] = (),
) -> Comparison:
    """Run `methods`; without an `exact` best value also L-BFGS to rounding, so that gaps are gaps to a minimum."""
    for name in methods:
        check_choice("method", name, METHODS)
    runs = {}
    for name in methods:
        started = time.perf_counter()
        runs[name] = (METHODS[name](problem, max_iter=max_iter, tol=tol), time.perf_counter() - started)
    lowest = [float(np.nanmin(solution.history["objective"])) for solution, _ in runs.values()]
    if exact is None:
        lowest.append(float(METHODS["lbfgs"](problem, max_iter=10_000, tol=0.0).history["objective"].min()))
    best = min(lowest) if exact is None else exact
    entries = []
    for name, (solution, seconds) in runs.items():
        gap = solution.history["objective"] - best
        entries.append(MethodRun(name, solution, gap, iterations_to(gap, target), seconds))
    promised = promise(runs["gdnp"][0]) if "gdnp" in runs else None
    return Comparison(tuple(entries), best, target, promised, tuple(notes))


def iterations_to(history: Array, target: float) -> int | None:
    """The first entry at or below `target`; None if there is none."""
    below = np.flatnonzero(history <= target)
    return int(below[0]) if len(below) else None
