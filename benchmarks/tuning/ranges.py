"""How much of the race's best rates a range around the rate of `tune` could hold, and whether another rate were better.

    python benchmarks/tuning/ranges.py --store DIR [DIR ...] --out benchmarks/tuning/results

Writes ranges.json, from the stored runs alone.

| name | share of tasks and seeds |
|---|---|
| holds the best | whose `lr_range` holds the rate that is best over all seeds |
| holds as good | whose `lr_range` holds a rate of the grid with a mean score within 0.5 points of the best |
| window of 4, of 8 | whose best rate lies from c to 4 c (8 c) times the named rate, for the one c that holds most |
| known task | whose own best rate lies in a window of 4 that is chosen for each task with its whole grid known |

Beside the shares: the 5 % and 95 % quantiles of best rate / named rate, and the mean regret at multiples of the named
rates, interpolated between the rates of the grid.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from grid import SEEDS
from methods import OURS
from regret import Curve, curves, task_means
from table import environment, merged
from task import FOLDERS, names

AS_GOOD = 0.5
QUANTILES = (0.05, 0.95)
MULTIPLES = tuple(2 ** (power / 2) for power in range(-4, 5))
Named = list[Mapping[str, Any]]


def held(values: Sequence[float], factor: float) -> int:
    """The most values that one window from c to factor * c holds.

    >>> held([1.0, 2.0, 5.0, 8.0, 40.0], 4.0)
    3
    """
    return max(sum(low <= value <= factor * low * (1 + 1e-9) for value in values) for low in values)


def own_best(curve: Curve, seed: int) -> float:
    """The best rate of the grid on one seed; of equals the smallest."""
    return max(curve.rates, key=lambda lr: curve.scores[seed, lr])


def holds_as_good(curve: Curve, low: float, high: float) -> bool:
    """Whether a rate from low to high has a mean regret over the seeds within `AS_GOOD` of the best rate's."""

    def regret(lr: float) -> float:
        return float(np.mean([curve.regret(seed, curve.scores[seed, lr]) for seed in SEEDS]))

    return any(regret(lr) <= regret(curve.best()) + AS_GOOD for lr in curve.rates if low <= lr <= high)


def apart(tasks: Mapping[str, Curve], named: Named) -> list[float]:
    """The ratio of the grid's best rate to each named rate."""
    return [tasks[one["task"]].best() / one["lr"] for one in named]


def shares(tasks: Mapping[str, Curve], named: Named) -> dict[str, float]:
    """The shares of the table above."""
    ratios, ranges = apart(tasks, named), [one["range"] for one in named]
    best = [tasks[one["task"]].best() for one in named]
    good = [holds_as_good(tasks[one["task"]], *one["range"]) for one in named]
    known = [held([own_best(curve, seed) for seed in SEEDS], 4.0) for curve in tasks.values()]
    return {
        "holds the best": float(np.mean([low <= rate <= high for rate, (low, high) in zip(best, ranges, strict=True)])),
        "holds as good": float(np.mean(good)),
        "window of 4": held(ratios, 4.0) / len(ratios),
        "window of 8": held(ratios, 8.0) / len(ratios),
        "known task": sum(known) / (len(SEEDS) * len(tasks)),
    }


def multiples(tasks: Mapping[str, Curve], named: Named) -> dict[str, float]:
    """The mean regret at each multiple of the named rates."""
    found = {}
    for multiple in MULTIPLES:
        cells = {(n["task"], n["seed"]): tasks[n["task"]].regret_at(n["seed"], multiple * n["lr"]) for n in named}
        found[f"{multiple:.3g}"] = math.fsum(task_means(cells).values()) / len(tasks)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    records = merged(args.store)
    tasks = curves(records)
    named = [one for one in records.values() if one["what"] == "name" and one["rule"] == OURS and one["seed"] in SEEDS]
    result: dict[str, Any] = {"schema": 1, "keys": environment(records)["keys"]}
    for title, chosen in {"all": list(tasks), **{folder: names(folder) for folder in FOLDERS}}.items():
        part = {task: tasks[task] for task in chosen}
        own = [one for one in named if one["task"] in part]
        result[title] = {
            "cells": len(own),
            "shares": shares(part, own),
            "best over named, quantiles": np.quantile(apart(part, own), QUANTILES).tolist(),
            "mean regret at multiples": multiples(part, own),
        }
    (args.out / "ranges.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
