"""Calibrate `ns.tune`: replay its search and choice on the stored curves of the development tasks.

    python benchmarks/tuning/calibrate.py --store STORE --out benchmarks/tuning/calibration.json

STORE is the folder of a grid (`run.py --what grid`). A rehearsal at any rate is replayed from the first losses of the
grid's trainings, linear in the logarithm of the rate between two of them. Held-out tasks are never read. The output has
the regrets of the rule as it stands, with other constants, and with usual rates fitted on all tasks but one.
"""

import argparse
import bisect
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from grid import SEEDS
from regret import Curve, curves
from store import Store
from task import OPTIMIZERS, load, names

from normscope.results.environment import environment
from normscope.tuning import choice, evidence, prior, search
from normscope.tuning.prior import Prior
from normscope.tuning.rehearsal import EXPLODES, Rehearsal
from normscope.tuning.request import BUDGET, BUDGET_OF_SHORT, SHORT

# Usual rates to fit, by kind of optimizer.
CANDIDATES = {"SGD": (0.05, 0.07, 0.1, 0.12, 0.15, 0.2, 0.3), "ADAM": (0.001, 0.002, 0.003, 0.004, 0.006, 0.008, 0.01)}
# Constants to vary: module, name, values.
VARIED: tuple[tuple[Any, str, tuple[float, ...]], ...] = (
    (search, "RATIO", (2.5, 4.0, 6.0)),
    (search, "SHARE", (1 / 12, 1 / 8, 1 / 6, 1 / 5)),
    (search, "MOST_STEPS", (8, 16, 32)),
    (search, "LEAD", (0.5, 1.0, 2.0)),
    (evidence, "SMALLEST_DIFFERENCE", (0.015, 0.03, 0.06)),
    (choice, "WIDTH", (0.7, 1.0, 1.5)),
)


@dataclass(frozen=True)
class Played:
    """A task of the grid: its records by seed and rate, and its regrets."""

    name: str
    records: Mapping[tuple[int, float], Mapping[str, Any]]
    curve: Curve
    kind: str
    steps: int

    def rehearsed(self, seed: int, lr: float, steps: int) -> Rehearsal:
        """A rehearsal at any rate, from the two nearest trainings."""
        rates = self.curve.rates
        lr = min(max(lr, rates[0]), rates[-1])
        place = min(bisect.bisect_right(rates, lr * (1 + 1e-9)) - 1, len(rates) - 2)
        share = math.log(lr / rates[place]) / math.log(rates[place + 1] / rates[place])
        below, above = (_losses(self.records[seed, rates[place + i]], steps) for i in (0, 1))
        nearer = below if share < 0.5 else above
        if len(below) == len(above) == steps:
            mixed = tuple((1 - share) * a + share * b for a, b in zip(below, above, strict=True))
            return Rehearsal(lr, steps, mixed, passes=steps)
        diverged = len(nearer) if len(nearer) < steps else None
        return Rehearsal(lr, steps, nearer, diverged, passes=min(steps, len(nearer) + 1))


def _losses(record: Mapping[str, Any], steps: int) -> tuple[float, ...]:
    """The losses of the first steps, up to the one at which a rehearsal would end."""
    kept: list[float] = []
    for loss in record["losses"][:steps]:
        if loss is None or loss > EXPLODES * record["losses"][0] > 0:
            break
        kept.append(loss)
    return tuple(kept)


def played(store: Store) -> list[Played]:
    """The development tasks whose grids are complete."""
    found, development = curves(store.records), set(names("development"))
    tasks = []
    for name, curve in sorted(found.items()):
        if name not in development:
            continue
        grid = {(r["seed"], r["lr"]): r for r in store.records.values() if r["what"] == "grid" and r["task"] == name}
        task = load(name)
        kind = "SGD" if OPTIMIZERS[task.optimizer][0].__name__ == "SGD" else "ADAM"
        tasks.append(Played(name, grid, curve, kind, task.steps))
    return tasks


def replay(task: Played, seed: int, usual: float) -> tuple[choice.Choice, float]:
    """The choice of `tune`, and the share of the steps that the search takes."""
    budget = math.floor(task.steps * (BUDGET_OF_SHORT if task.steps < SHORT else BUDGET) + 1e-9)
    plan = search.planned(usual, budget)
    known: list[Rehearsal] = []
    while wave := search.next_wave(plan, known):
        known += [_at(task.rehearsed(seed, lr, plan.steps), lr) for lr in wave]
    return choice.choose(plan, Prior(usual, "the usual rate"), known), sum(each.passes for each in known) / task.steps


def _at(made: Rehearsal, lr: float) -> Rehearsal:
    """The rehearsal at the rate that was asked for, also beyond the ends of the grid."""
    return Rehearsal(lr, made.steps, made.losses, made.diverged_at, passes=made.passes)


def regrets(tasks: list[Played], usual: Callable[[Played], float]) -> dict[str, list[float]]:
    """By task: the regret of each seed."""
    return {
        task.name: [task.curve.regret_at(seed, replay(task, seed, usual(task))[0].lr) for seed in SEEDS]
        for task in tasks
    }


def shipped(task: Played) -> float:
    """The usual rate as it stands."""
    return float(getattr(prior, task.kind))


def summary(found: Mapping[str, list[float]]) -> dict[str, float]:
    """Mean and worst regret over tasks (means of seeds), and the worst of a single seed."""
    means = [float(np.mean(row)) for row in found.values()]
    worst = max(max(row) for row in found.values())
    return {"mean": _round(np.mean(means)), "worst_task": _round(max(means)), "worst_seed": _round(worst)}


def left_out(tasks: list[Played]) -> dict[str, Any]:
    """Each task with the usual rate that is best on the others of its kind of optimizer."""
    table = {
        (task.name, rate): float(np.mean([task.curve.regret_at(s, replay(task, s, rate)[0].lr) for s in SEEDS]))
        for task in tasks
        for rate in CANDIDATES[task.kind]
    }
    rows = {}
    for task in tasks:
        others = [other.name for other in tasks if other.kind == task.kind and other is not task]
        rate = min(CANDIDATES[task.kind], key=lambda rate: sum(table[name, rate] for name in others))
        rows[task.name] = {"usual_rate": rate, "regret": _round(table[task.name, rate])}
    by_rate = {
        kind: {
            f"{rate:g}": _round(np.mean([table[task.name, rate] for task in tasks if task.kind == kind]))
            for rate in rates
        }
        for kind, rates in CANDIDATES.items()
    }
    values = [row["regret"] for row in rows.values()]
    return {"mean": _round(np.mean(values)), "worst_task": max(values), "tasks": rows, "mean_by_usual_rate": by_rate}


@contextmanager
def constant(module: Any, name: str, value: float) -> Iterator[None]:
    """While this context lasts, the rule has another constant, in every module that imported it."""
    holders = [each for each in (search, evidence, choice) if hasattr(each, name)]
    patches = [mock.patch.object(each, name, value) for each in holders]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def ranges(tasks: list[Played]) -> dict[str, float]:
    """How wide `lr_range` is, and how often it holds the grid's best rate and the other seeds' rates."""
    spans, holds, steady, shares = [], [], [], []
    for task in tasks:
        answers = [replay(task, seed, shipped(task)) for seed in SEEDS]
        chosen = [answer for answer, _ in answers]
        shares += [share for _, share in answers]
        low, high = (float(np.median([each.lr_range[end] for each in chosen])) for end in (0, 1))
        spans += [each.lr_range[1] / each.lr_range[0] for each in chosen]
        holds += [each.lr_range[0] <= task.curve.best() <= each.lr_range[1] for each in chosen]
        steady += [low <= each.lr <= high for each in chosen]
    return {
        "median_factor": _round(np.median(spans)),
        "holds_best_of_grid": _round(np.mean(holds)),
        "rate_inside_median_range": _round(np.mean(steady)),
        "mean_share_of_steps": _round(np.mean(shares), 4),
        "largest_share_of_steps": _round(max(shares), 4),
    }


def _round(value: Any, digits: int = 3) -> float:
    return round(float(value), digits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("calibration.json"))
    args = parser.parse_args()
    tasks = played(Store(args.store))
    as_it_stands = regrets(tasks, shipped)
    variants = {}
    for module, name, values in VARIED:
        for value in values:
            with constant(module, name, value):
                variants[f"{name}={value:.3g}"] = summary(regrets(tasks, shipped))
    usual_alone = {task.name: [task.curve.regret_at(seed, shipped(task)) for seed in SEEDS] for task in tasks}
    result = {
        "usual_rates": {"SGD": prior.SGD, "ADAM": prior.ADAM},
        "rule": summary(as_it_stands) | {"tasks": {k: _round(np.mean(v)) for k, v in as_it_stands.items()}},
        "ranges": ranges(tasks),
        "usual_rate_alone": summary(usual_alone),
        "left_out": left_out(tasks),
        "other_constants": variants,
        "environment": environment(),
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in ("rule", "ranges", "usual_rate_alone")}, indent=1))
    print("left out:", {key: result["left_out"][key] for key in ("mean", "worst_task", "mean_by_usual_rate")})
    for name, row in variants.items():
        print(f"{name:28s} {row}")


if __name__ == "__main__":
    main()
