"""Ours: the learning rate that normscope names before training, tested against a range test and a grid."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from normscope.papers.curve_statistics import each
from normscope.papers.entry import Curve, Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves
from normscope.papers.experiments.advice import ADVICE, TASKS, named

ADVISERS = {"predict": "theory", "measure": "curvature", "critical": "critical step", "range": "range test"}
OURS = ("predict", "measure", "critical")
# The rate that `measure` names. These tasks shaped it, so it is shown here and judged in `advice-held-out`.
NOW = {"settled": "`measure` now"}
# Accuracy of a run that diverged: chance among ten classes.
CHANCE = 0.1
SMALL = tuple(name for name, task in TASKS.items() if task["data"] != "cifar10")
LARGE = tuple(name for name, task in TASKS.items() if task["data"] == "cifar10")


# Our reading of each adviser's outcome.
MEANINGS = {
    "predict": "Half of eta* is careful: in a few hundred steps without momentum training survives beyond eta* and "
    "learns more there. With momentum it is near the best.",
    "measure": "As for theory. On the digits, whose rare pixels are far out, a few samples of the batch raise the "
    "measured lambda above the predicted one, and the rate is more careful than need be (`every-norm/theory`).",
    "critical": "It looks along one direction in eight forward passes, and is as good as the curvature on these tasks "
    "or better: being less careful pays in short training.",
    "range-test": "The range test fails with squared error, where its smoothed loss falls fastest long before, or just "
    "before, it blows up: most of its mean is one task, plain gradient descent on the digits, where its rate diverges. "
    "With cross-entropy and with Adam it is as good as ours, or better.",
}


# Our reading of the outcomes on CIFAR-10.
LARGE_MEANINGS = {
    "predict": "Near the best on all three; on the CNN by luck too, since its rate, 5 % above the measured one, is "
    "nearer to the grid's best.",
    "measure": "Half of eta* is careful: the best rates of VGG-11 are 0.8 to 2.5 times eta*, those of the CNN 0.7 "
    "times. On the ResNet two of three seeds lose 0.7 points, the third 5.7 at a rate between two that lose less than "
    "2: single trainings of 500 steps differ by as much. What `measure` names since then is in the last column and in "
    "`advice-held-out`.",
    "critical": "One share does not fit both losses: with squared error the best rates are 1.1 times the critical "
    "step, with cross-entropy 0.04 to 0.24 times.",
    "range-test": "Networks of this size are lost before the smoothed loss of a range test rises: it names rates 27 to "
    "280 times too large on VGG-11 and the ResNet. On the CNN it names a hundredth of the best, or ten times it.",
}


def regret(task: str, curves: Curves, adviser: str) -> float:
    """Points of test accuracy that the grid's rate nearest to the advice loses against the best one."""
    rate = named(TASKS[task], curves, adviser)
    if math.isnan(rate):
        return math.nan
    shares = np.nan_to_num(np.array(curves["test_accuracy"], dtype=float), nan=CHANCE)
    nearest = int(np.abs(np.log(np.array(curves["rate"]) / max(rate, 1e-30))).argmin())
    return 100 * float(shares.max() - shares[nearest])


def _regrets(runs: Runs, tasks: Sequence[str], adviser: str) -> dict[str, float]:
    """Mean regret over seeds, for each task where the adviser names a rate."""
    regrets = {task: float(np.mean([regret(task, c, adviser) for c in runs.of(task).values()])) for task in tasks}
    return {task: value for task, value in regrets.items() if not math.isnan(value)}


def _cheap(runs: Runs, tasks: Sequence[str], adviser: str) -> list[Part]:
    return [Part(f"{task}: {value:.1f} points", value <= 2.0) for task, value in _regrets(runs, tasks, adviser).items()]


def _beats(runs: Runs, tasks: Sequence[str]) -> list[Part]:
    """Comparison with the range test on the tasks where both name a rate."""
    other, parts = _regrets(runs, tasks, "range"), []
    for adviser in OURS:
        regrets = _regrets(runs, tasks, adviser)
        mine, theirs = (float(np.mean([regret[task] for task in regrets])) for regret in (regrets, other))
        words = f"{ADVISERS[adviser]}: {mine:.1f} points in the mean of {len(regrets)} tasks, range test {theirs:.1f}"
        parts.append(Part(words, mine < theirs))
    return parts


def _table(runs: Runs) -> list[list[str]]:
    tasks = [task for task in TASKS if runs.of(task)]
    if not tasks:
        return []
    rows = [["task", "best rate of the grid", *ADVISERS.values(), *NOW.values(), "n"]]
    for task in tasks:
        curves = list(runs.of(task).values())
        best = [c["rate"][int(np.nanargmax(np.array(c["test_accuracy"], dtype=float)))] for c in curves]
        row = [task, each(best, ".2g")]
        for adviser in (*ADVISERS, *NOW):
            rate = float(np.mean([named(TASKS[task], c, adviser) for c in curves]))
            lost = float(np.mean([regret(task, c, adviser) for c in curves]))
            row.append("none" if math.isnan(rate) else f"{rate:.2g}: {lost:.1f}")
        rows.append([*row, str(len(curves))])
    return rows


def panel(title: str, regrets: Mapping[str, Sequence[tuple[int, float]]]) -> list[Picture]:
    """A point for each task and seed, the advisers of a task side by side; nan where an adviser has no rate."""
    lines = []
    for i, (label, costs) in enumerate(regrets.items()):
        aside = 0.15 * (i - (len(regrets) - 1) / 2)
        known = [(place + aside, max(value, 0.1)) for place, value in costs if not math.isnan(value)]
        if known:
            places, values = zip(*known, strict=True)
            lines.append(Curve(label, places, values, points=True))
    words = "task, in the order of the table"
    return [Picture(title, words, "points of test accuracy (at least 0.1)", lines, log_y=True)] if lines else []


def _panels(runs: Runs) -> list[Picture]:
    regrets = {
        label: [(i, regret(t, c, adviser)) for i, t in enumerate(TASKS, 1) for c in runs.of(t).values()]
        for adviser, label in ADVISERS.items()
    }
    return panel("Cost of an advised learning rate", regrets)


def _statements(tasks: Sequence[str], where: str, suffix: str, meanings: Mapping[str, str]) -> list[Statement]:
    rule = f"On every one of {where}, mean of seeds: at most 2 points of test accuracy below the best rate of the grid."
    return [
        *(
            Statement(
                f"{adviser}{suffix}",
                f"A learning rate named by {ADVISERS[adviser]} costs little against a search ({where}).",
                rule,
                lambda runs, adviser=adviser: _cheap(runs, tasks, adviser),  # type: ignore[misc]
                cells=tasks,
                means=meanings[adviser],
            )
            for adviser in OURS
        ),
        Statement(
            f"range-test{suffix}",
            f"It costs less than the rate of a range test ({where}).",
            "Mean regret over the tasks that both know, mean of seeds: below the range test's, for each of the three.",
            lambda runs: _beats(runs, tasks),
            cells=tasks,
            means=meanings["range-test"],
        ),
    ]


ENTRY = Entry(
    name="advice",
    title="Advice on the learning rate, tested",
    source="ours",
    origin="BatchNorm networks, batch 128, 150 to 1,000 steps, a grid of quarter decades. Gradient descent: half of "
    "eta* by theory or curvature, a quarter of the critical step; Adam: a tenth and a twentieth; range test as "
    "torch-lr-finder does it. A run that diverged counts as 10 %",
    needs={
        experiment: tuple(task for task in TASKS if TASKS[task]["data"] == data) for data, experiment in ADVICE.items()
    },
    statements=(
        *_statements(SMALL, "seven tasks on digits and MNIST", "", MEANINGS),
        *_statements(LARGE, "three tasks on CIFAR-10", "-cifar10", LARGE_MEANINGS),
    ),
    panels=_panels,
    table=_table,
)
