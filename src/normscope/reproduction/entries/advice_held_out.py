"""Ours: the learning rate that `measure` names to start with, on tasks that had no part in its making."""

import math
from collections.abc import Sequence

import numpy as np

from normscope.reproduction.curves import each
from normscope.reproduction.entries.advice import CHANCE, panel
from normscope.reproduction.entry import Entry, Panel, Part, Runs, Statement
from normscope.reproduction.experiment import Curves
from normscope.reproduction.experiments.advice import ADVISED
from normscope.reproduction.experiments.advice_held_out import HELD_OUT, NORMALIZED, PLAIN, TASKS

LABELS = {"start": "measure, now", "predict": "theory", "measure": "half of eta*", "range": "range test"}


def regret(curves: Curves, adviser: str) -> float:
    """Points of test accuracy that training at the advised rate loses against the grid's best; may be below 0."""
    at = curves["at"][adviser]
    if math.isnan(at["rate"]):
        return math.nan
    grid = np.nan_to_num(np.array(curves["test_accuracy"], dtype=float), nan=CHANCE)
    reached = at["test_accuracy"]
    return 100 * (float(grid.max()) - (CHANCE if math.isnan(reached) else reached))


def _mean(runs: Runs, task: str, adviser: str) -> float:
    return float(np.mean([regret(curves, adviser) for curves in runs.of(task).values()]))


def _cheap(runs: Runs, tasks: Sequence[str]) -> list[Part]:
    found = {task: _mean(runs, task, "start") for task in tasks}
    return [Part(f"{task}: {value:.1f} points", value <= 2.0) for task, value in found.items()]


def _beats(runs: Runs) -> list[Part]:
    """On the tasks that both know."""
    parts = []
    for other in ("range", "measure", "predict"):
        pairs = [(_mean(runs, task, "start"), _mean(runs, task, other)) for task in NORMALIZED]
        known = np.array([pair for pair in pairs if not np.isnan(pair).any()])
        mine, theirs = known.mean(axis=0) if len(known) else (math.nan, math.nan)
        words = f"{mine:.1f} points in the mean of {len(known)} tasks, {LABELS[other]} {theirs:.1f}"
        parts.append(Part(words, bool(mine < theirs)))
    return parts


def _table(runs: Runs) -> list[list[str]]:
    tasks = [task for task in TASKS if runs.of(task)]
    if not tasks:
        return []
    rows = [["task", "best rate of the grid", *(LABELS[adviser] for adviser in ADVISED), "n"]]
    for task in tasks:
        found = list(runs.of(task).values())
        best = [c["rate"][int(np.nanargmax(np.array(c["test_accuracy"], dtype=float)))] for c in found]
        row = [task, each(best, ".2g")]
        for adviser in ADVISED:
            rate = float(np.mean([c["at"][adviser]["rate"] for c in found]))
            row.append("none" if math.isnan(rate) else f"{rate:.2g}: {_mean(runs, task, adviser):.1f}")
        rows.append([*row, str(len(found))])
    return rows


def _panels(runs: Runs) -> list[Panel]:
    found = {
        LABELS[adviser]: [(i, regret(c, adviser)) for i, task in enumerate(TASKS, 1) for c in runs.of(task).values()]
        for adviser in ADVISED
    }
    return panel("Cost of an advised learning rate, other tasks", found)


ENTRY = Entry(
    name="advice-held-out",
    title="Advice on the learning rate, on tasks it was not made on",
    source="ours",
    origin="`measure` names a rate to start with: 0.8 of the critical step with squared error, 0.1 with cross-entropy. "
    "These shares were chosen with the ten tasks of `advice` in sight, and with single runs on the digits "
    "(cross-entropy without momentum, Adam with squared error, LayerNorm, no normalizer) and of an MLP on CIFAR-10 "
    "(squared error); of the tasks here no training was seen. BatchNorm where nothing else is said, batch 128, 150 "
    "steps, a grid of quarter decades; advised rates are trained at themselves. A run that diverged counts as 10 %",
    needs={
        experiment: tuple(task for task in TASKS if TASKS[task]["data"] == data)
        for data, experiment in HELD_OUT.items()
    },
    statements=(
        Statement(
            "start",
            "The rate that `measure` names to start with costs little against a search (eight tasks, normalized).",
            "On every one of eight tasks, mean of seeds: at most 2 points of test accuracy below the best rate of the "
            "grid.",
            lambda runs: _cheap(runs, tuple(NORMALIZED)),
            cells=tuple(NORMALIZED),
        ),
        Statement(
            "better",
            "It costs less than a range test, than the advice before it (half of eta*, a tenth for Adam) and than "
            "theory's.",
            "Mean regret over the tasks with a normalizer that both know, mean of seeds: below each of the three.",
            _beats,
            cells=tuple(NORMALIZED),
        ),
        Statement(
            "without-normalizer",
            "It costs little without a normalizer too.",
            "On both tasks without one, mean of seeds: at most 2 points of test accuracy below the best rate of the "
            "grid.",
            lambda runs: _cheap(runs, tuple(PLAIN)),
            cells=tuple(PLAIN),
        ),
    ),
    panels=_panels,
    table=_table,
)
