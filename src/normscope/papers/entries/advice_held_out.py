"""Ours: the learning rate that `measure` names to start with, on tasks that had no part in its rule."""

import math
from collections.abc import Sequence

import numpy as np

from normscope.papers.curve_statistics import each
from normscope.papers.entries.advice import CHANCE, panel
from normscope.papers.entry import Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves
from normscope.papers.experiments.advice import named
from normscope.papers.experiments.advice_held_out import AGAIN, HELD_OUT, NORMALIZED, PLAIN, TASKS

LABELS = {
    "settled": "measure",
    "start": "critical step",
    "predict": "theory",
    "measure": "half of eta*",
    "range": "range test",
}


MEANINGS = {
    "start": "It fails where momentum meets squared error in a small CNN: the loss falls from 10 from the first step "
    "on and stays at 0.4, and nothing in it rises or diverges. The first outputs are far from the targets, and the "
    "first steps leave most channels of the last layer dead. A critical step is one step long and cannot see that. "
    "With cross-entropy an MLP on CIFAR-10 wants less than a tenth.",
    "better": "One task decides its mean, the small CNN with momentum; without that it costs 0.7 points, theory 6.8 "
    "and the range test 7.2. The range test is better, by 0.1 to 1.2 points, with cross-entropy on the MLPs.",
    "settled": "Half of eta* is too large for the CNN on the digits as well, for the same reason: at 0.14 84 % of the "
    "last layer's channels are dead after 150 steps, at the best rate 31 %; without momentum 0.8 of the critical step "
    "is as good as the best rate. GroupNorm over a map of one pixel normalizes pairs of numbers, so that the output "
    "jumps: no adviser names a rate that trains, and the best of the grid reaches 66 %. The task was badly chosen; it "
    "stays.",
}


def at(task: str, curves: Curves, adviser: str) -> dict[str, float]:
    """The training at the adviser's rate. "settled" is the training at the smaller of two rates, except in AGAIN."""
    trained: dict[str, dict[str, float]] = curves["at"]
    if adviser in trained or adviser != "settled":
        return trained.get(adviser, {"rate": math.nan, "test_accuracy": math.nan})
    settled = named(TASKS[task], curves, "settled")
    return min((trained["start"], trained["measure"]), key=lambda one: abs(one["rate"] - settled))


def regret(task: str, curves: Curves, adviser: str) -> float:
    """Points of test accuracy that training at the advised rate loses against the grid's best; may be below 0."""
    trained = at(task, curves, adviser)
    if math.isnan(trained["rate"]):
        return math.nan
    grid = np.nan_to_num(np.array(curves["test_accuracy"], dtype=float), nan=CHANCE)
    reached = trained["test_accuracy"]
    return 100 * (float(grid.max()) - (CHANCE if math.isnan(reached) else reached))


def _mean(runs: Runs, task: str, adviser: str) -> float:
    return float(np.mean([regret(task, curves, adviser) for curves in runs.of(task).values()]))


def _cheap(runs: Runs, tasks: Sequence[str], adviser: str) -> list[Part]:
    regrets = {task: _mean(runs, task, adviser) for task in tasks}
    return [Part(f"{task}: {value:.1f} points", value <= 2.0) for task, value in regrets.items()]


def _beats(runs: Runs) -> list[Part]:
    """Comparison with the range test on the tasks where both name a rate."""
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
    rows = [["task", "best rate of the grid", *LABELS.values(), "n"]]
    for task in tasks:
        curves = list(runs.of(task).values())
        best = [c["rate"][int(np.nanargmax(np.array(c["test_accuracy"], dtype=float)))] for c in curves]
        row = [task, each(best, ".2g")]
        for adviser in LABELS:
            rate = float(np.mean([at(task, c, adviser)["rate"] for c in curves]))
            row.append("none" if math.isnan(rate) else f"{rate:.2g}: {_mean(runs, task, adviser):.1f}")
        rows.append([*row, str(len(curves))])
    return rows


def _panels(runs: Runs) -> list[Picture]:
    regrets = {
        LABELS[adviser]: [
            (i, regret(task, c, adviser)) for i, task in enumerate(TASKS, 1) for c in runs.of(task).values()
        ]
        for adviser in LABELS
    }
    return panel("Cost of an advised learning rate, other tasks", regrets)


ENTRY = Entry(
    name="advice-held-out",
    title="Advice on the learning rate, on tasks it was not made on",
    source="ours",
    origin="The shares of the critical step were chosen with the ten tasks of `advice` in sight, and with single runs "
    "on the digits (cross-entropy without momentum, Adam with squared error, LayerNorm, no normalizer) and of an MLP "
    "on CIFAR-10 (squared error); of the tasks here no training was seen. The half of eta* with squared error and "
    "momentum was added with the first seeds on MNIST and CIFAR-10 in sight, before those on the digits. BatchNorm "
    "where nothing else is said, batch 128, 150 steps, a grid of quarter decades; advised rates are trained at "
    "themselves. A run that diverged counts as 10 %",
    needs={
        experiment: tuple(task for task in TASKS if TASKS[task]["data"] == data)
        for data, experiment in HELD_OUT.items()
    },
    statements=(
        Statement(
            "start",
            "A share of the critical step, 0.8 with squared error and 0.1 with cross-entropy, costs little against a "
            "search (eight tasks, normalized).",
            "On every one of eight tasks, mean of seeds: at most 2 points of test accuracy below the best rate of the "
            "grid.",
            lambda runs: _cheap(runs, tuple(NORMALIZED), "start"),
            cells=tuple(NORMALIZED),
            means=MEANINGS["start"],
        ),
        Statement(
            "better",
            "It costs less than a range test, than the advice before it (half of eta*, a tenth for Adam) and than "
            "theory's.",
            "Mean regret over the tasks with a normalizer that both know, mean of seeds: below each of the three.",
            _beats,
            cells=tuple(NORMALIZED),
            means=MEANINGS["better"],
        ),
        Statement(
            "without-normalizer",
            "It costs little without a normalizer too.",
            "On both tasks without one, mean of seeds: at most 2 points of test accuracy below the best rate of the "
            "grid.",
            lambda runs: _cheap(runs, tuple(PLAIN), "start"),
            cells=tuple(PLAIN),
        ),
        Statement(
            "settled",
            "What `measure` names, which with squared error and momentum is at most half of eta*, costs little "
            "against a search (five tasks on digits).",
            "On every one of five tasks, mean of seeds: at most 2 points of test accuracy below the best rate of the "
            "grid.",
            lambda runs: _cheap(runs, tuple(AGAIN), "settled"),
            cells=tuple(AGAIN),
            means=MEANINGS["settled"],
        ),
    ),
    panels=_panels,
    table=_table,
)
