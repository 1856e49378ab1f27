"""Regret against the grid, and how sure a difference of mean regrets is.

    task with a metric     regret = 100 (metric_ref - metric)
    task without           regret = 100 (loss - loss_ref) / (loss_start - loss_best), at most 100

`ref` is the grid's run of the same seed at the rate that is best on the other seeds, among the rates that do not fail
on this one; `best` is the lowest loss of the grid on this seed. A run failed if it gained less than half of what the
best run of the seed gained over the start. A run that diverged, or an entrant that names no rate, is judged by the
network at its start.
"""

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from grid import SEEDS, best_of, score, start_score

REPEATS = 10_000
ByCell = Mapping[tuple[str, int], float]


@dataclass(frozen=True)
class Curve:
    """The grid of one task: scores by (seed, lr), the start's score by seed, and whether a metric is judged."""

    scores: dict[tuple[int, float], float]
    starts: dict[int, float]
    has_metric: bool

    @functools.cached_property
    def rates(self) -> list[float]:
        """The rates of the grid that every seed has."""
        return sorted({lr for _, lr in self.scores if all((seed, lr) in self.scores for seed in SEEDS)})

    def best(self, without: int | None = None) -> float:
        """The best rate over all seeds but one, on which it does not fail."""
        kept = self.scores
        if without is not None:
            failed = {lr for (seed, lr), score in kept.items() if seed == without and self.failed(seed, score)}
            kept = {cell: score for cell, score in kept.items() if cell[1] not in failed}
        return best_of(kept, [seed for seed in SEEDS if seed != without])

    def best_score(self, seed: int) -> float:
        """The best score of the grid on a seed."""
        return max(score for (s, _), score in self.scores.items() if s == seed)

    def failed(self, seed: int, score: float) -> bool:
        """Whether a score on this seed gained less than half of the grid's best over the start."""
        return score - self.starts[seed] < (self.best_score(seed) - self.starts[seed]) / 2

    def regret(self, seed: int, value: float) -> float:
        """The regret of a score on this seed."""
        missing = self.scores[seed, self.best(without=seed)] - value
        if self.has_metric:
            return missing
        return min(100.0, 100.0 * missing / (self.best_score(seed) - self.starts[seed]))

    @functools.cached_property
    def _regrets(self) -> dict[int, list[float]]:
        """The regrets of the grid's own runs, by seed, in the order of `rates`."""
        return {seed: [self.regret(seed, self.scores[seed, lr]) for lr in self.rates] for seed in SEEDS}

    def regret_at(self, seed: int, lr: float) -> float:
        """The regret at any rate, linear in its logarithm between two rates of the grid; the edge's beyond it."""
        return float(np.interp(math.log(lr), np.log(self.rates), self._regrets[seed]))


def curves(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Curve]:
    """The grids in a store that are complete for at least nine rates."""
    grids: dict[str, list[Mapping[str, Any]]] = {}
    for record in records.values():
        if record["what"] == "grid":
            grids.setdefault(record["task"], []).append(record)
    found = {}
    for task, runs in grids.items():
        scores = {(r["seed"], r["lr"]): score(r) for r in runs}
        starts = {r["seed"]: start_score(r) for r in runs}
        curve = Curve(scores, starts, runs[0]["start"]["test"]["metric"] is not None)
        if len(curve.rates) >= 9:
            found[task] = curve
    return found


def task_means(regrets: ByCell) -> dict[str, float]:
    """The mean over seeds of each task."""
    tasks = sorted({task for task, _ in regrets})
    return {task: float(np.mean([x for (t, _), x in regrets.items() if t == task])) for task in tasks}


def interval(regrets: ByCell, other: ByCell | None = None, seed: int = 0) -> tuple[float, float]:
    """The 95 % bootstrap interval of a mean regret, or of the mean of regrets - other, paired by task and seed.

    Tasks are drawn with replacement, and within each task its seeds.
    """
    cells = sorted(regrets if other is None else regrets.keys() & other.keys())
    values = {cell: regrets[cell] - (other[cell] if other else 0.0) for cell in cells}
    rows = [[values[cell] for cell in group] for _, group in itertools.groupby(cells, key=lambda cell: cell[0])]
    generator = np.random.default_rng(seed)
    drawn = generator.integers(len(rows), size=(REPEATS, len(rows)))
    means = np.empty((REPEATS, len(rows)))
    for number, row in enumerate(rows):
        places = np.nonzero(drawn == number)
        picks = generator.integers(len(row), size=(len(places[0]), len(row)))
        means[places] = np.asarray(row)[picks].mean(1)
    low, high = np.quantile(means.mean(1), [0.025, 0.975])
    return float(low), float(high)
