"""docs/evidence/accuracy.md from stored results: how far predictions, stability limits and first guesses were off.

    python benchmarks/accuracy_page.py > docs/evidence/accuracy.md

A test compares the page with what this script prints.
"""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tuning_page import OURS
from tuning_page import in_words as race_in_words
from tuning_page import stored as stored_race

from normscope.papers import Runs, Store, all_entries, stored
from normscope.papers.entries.advice import TASKS, regret
from normscope.papers.entries.advice_held_out import TASKS as HELD_OUT
from normscope.papers.entries.advice_held_out import regret as held_out_regret
from normscope.stability.first_guess_evidence import COST, COST_OF_THEORY

ROOT = Path(__file__).parents[1]
# `predict` warns below this width: its theory is one of wide layers.
NARROW = 30
Row = dict[str, Any]


def page() -> str:
    rows = _stored("results/theory-lambda.json")["rows"]
    drawn = _stored("benchmarks/results/calibration.json")
    squared = _stored("results/phase-mnist-mlp.json")["agreement"]
    entropy = _stored("results/phase-mnist-mlp-cross-entropy.json")["agreement"]
    advice = {name: _lost(name, regrets) for name, regrets in _ADVICE.items()}
    parts = [_HEAD, "## In short", "", *_summary(rows, drawn, squared, entropy, advice), ""]
    parts += ["## Which tasks a number is from", "", *_sets_of_tasks(advice), ""]
    parts += ["## predict against measure", "", _PREDICTED, "", *_networks(rows), "", _drawn_words(drawn), ""]
    parts += ["## eta\\* against training", "", _TRAINED, "", *_boundaries(squared, entropy), ""]
    parts += ["## First guesses against a grid", "", _GUESSED, "", *_guesses(advice), ""]
    parts += ["## Rates of tune against a grid", "", _tuned_words()]
    return "\n".join(parts)


def _stored(name: str) -> Row:
    found: Row = json.loads((ROOT / name).read_text(encoding="utf-8"))
    return found


def _table(*rows: Sequence[str]) -> list[str]:
    head, *rest = rows
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rest)]


def _percent(errors: Sequence[float]) -> tuple[str, str]:
    """The median size and the signed worst of relative errors."""
    worst = max(errors, key=abs)
    return f"{100 * statistics.median(map(abs, errors)):.1f} %", f"{100 * worst:+.0f} %"


def _decades(agreement: Row) -> tuple[str, str]:
    median, worst = (f"{agreement[key]:+.2f} decades (x {_two(10 ** agreement[key])})" for key in ("median", "worst"))
    return median, worst


def _two(number: float) -> str:
    """Two digits, without an exponent."""
    return f"{float(f'{number:.1e}'):g}"


def _named(agreement: Sequence[Row], name: str) -> Row:
    return next(one for one in agreement if one["name"] == name)


def _summary(
    rows: Sequence[Row], drawn: Row, squared: Sequence[Row], entropy: Sequence[Row], advice: dict[str, dict[str, float]]
) -> list[str]:
    wide = [row["error"] for row in rows if row["width"] >= NARROW]
    narrow = [row["error"] for row in rows if row["width"] < NARROW]
    errors = [1 / row["ratio"] - 1 for row in drawn["rows"] if not row["refused"]]
    lines = [("number", "compared with", "median", "worst", "n")]
    lines.append(
        ("predicted lambda_max", "measured, this project's networks", *_percent(wide), f"{len(wide)} networks")
    )
    lines.append(
        (
            "predicted lambda_max",
            f"measured, fewer than {NARROW} channels (warned)",
            *_percent(narrow),
            f"{len(narrow)} networks",
        )
    )
    lines.append(
        ("predicted lambda_max", "measured, networks drawn at random", *_percent(errors), f"{len(errors)} networks")
    )
    for name in ("measured", "predicted"):
        found = _named(squared, name)
        lines.append(
            (f"{name} eta\\*", "divergence of training, squared error", *_decades(found), f"{found['n']} gammas")
        )
    found = _named(entropy, "measured")
    lines.append(("measured eta\\*", "divergence of training, cross-entropy", *_decades(found), f"{found['n']} gammas"))
    for name, lost in advice.items():
        costs = sorted(lost.values())
        where = "tasks its rule was made with" if name == "advice" else "tasks its rule was not made with"
        cells = (f"{statistics.median(costs):.1f} points", f"{costs[-1]:.1f} points", f"{len(costs)} tasks")
        lines.append(("first guess of `measure`", f"accuracy at the best rate of a grid, {where}", *cells))
    race = stored_race()
    for name, where in (("development", "it was developed on"), ("held-out", "written without it")):
        row = race[name]["same optimizer"][OURS]
        cells = (f"{row['median']:.1f} points", f"{row['worst']:.1f} points", f"{row['tasks']} tasks")
        lines.append(("rate of `tune`", f"result at the best rate of a grid, tasks {where}", *cells))
    return _table(*lines)


def _tuned_words() -> str:
    race = stored_race()
    return (
        "Points of test accuracy or, for tasks without accuracy, per cent of the fall of the test loss, mean of three "
        f"seeds. On all {len(race['all']['tasks'])} tasks `tune` lost {race_in_words(race['all'])}. "
        "[The race](tuning.md) has the opponents, the intervals and the tasks on which `tune` loses."
    )


def _sets_of_tasks(advice: dict[str, dict[str, float]]) -> list[str]:
    """One row for each set of tasks on which a rate was compared with a grid, with what was lost there."""
    race = stored_race()
    lines = [("rate", "set of tasks", "tasks", "median", "worst", "where it stands")]
    for name, words in (("advice", "its rule was made with these"), ("advice-held-out", "its rule was not made with")):
        lost = list(advice[name].values())
        where = "the summary above"
        lines.append(("first guess", words, str(len(lost)), *_points(statistics.median(lost), max(lost)), where))
    for (kind, family), (tasks, median, worst) in COST.items():
        words = f"of both, with a normalizer, {kind.replace('_', '-')}, {family}"
        lines.append(("first guess", words, str(tasks), *_points(median, worst), "printed by `measure`"))
    for kind, (tasks, median, worst) in COST_OF_THEORY.items():
        words = f"of both, with a normalizer, {kind.replace('_', '-')}"
        lines.append(("half of eta\\*", words, str(tasks), *_points(median, worst), "printed by `predict`"))
    for name, words in (("all", "the race, all"), ("held-out", "the race, written without `tune`")):
        for rate, method in (("first guess", "first guess"), ("rate of `tune`", OURS)):
            row = race[name]["same optimizer"][method]
            worst = row["worst"]
            tasks = str(len(race[name]["tasks"]))
            lines.append((rate, words, tasks, *_points(row["median"], worst), "[the race](tuning.md)"))
    return [_SETS, "", *_table(*lines)]


def _points(median: float, worst: float) -> tuple[str, str]:
    return f"{median:.1f} points", f"{worst:.1f} points"


def _networks(rows: Sequence[Row]) -> list[str]:
    lines = [("network", "widths", "gamma", "median", "worst", "n")]
    for narrow in (False, True):
        kept = [row for row in rows if (row["width"] < NARROW) == narrow]
        for network in sorted({row["network"] for row in kept}):
            own = [row for row in kept if row["network"] == network]
            span = [_span([row[key] for row in own]) for key in ("width", "gamma")]
            lines.append((network, *span, *_percent([row["error"] for row in own]), str(len(own))))
    return _table(*lines)


def _span(values: Sequence[float]) -> str:
    return f"{min(values):g}" if min(values) == max(values) else f"{min(values):g} to {max(values):g}"


def _drawn_words(drawn: Row) -> str:
    times = [row["ratio"] for row in drawn["rows"] if not row["refused"]]
    return (
        f"**Networks drawn at random.** Of {drawn['networks']} networks of random family, normalizer, activation, "
        f"width and depth, `predict` refused to name a rate for {drawn['refused']}. For the others the measured "
        f"lambda_max was {min(times):.2f} to {max(times):.2f} times the predicted one; "
        f"{drawn['outside']} of {drawn['answered']} lay outside the range that `Prediction.calibrated_range` states "
        "([numbers](../../benchmarks/results/calibration.json))."
    )


def _boundaries(squared: Sequence[Row], entropy: Sequence[Row]) -> list[str]:
    lines = [("loss", "eta\\*", "median", "worst", "gammas")]
    for loss, agreement in (("squared error", squared), ("cross-entropy", entropy)):
        lines += [(loss, one["name"], *_decades(one), str(one["n"])) for one in agreement]
    return _table(*lines)


def _lost(name: str, regrets: tuple[Any, Callable[[str, Any, str], float]]) -> dict[str, float]:
    """Points of test accuracy that the first guess loses on each task, mean of seeds."""
    tasks, cost = regrets
    runs: Runs = stored(all_entries()[name], Store(ROOT / "results/reproduce"), "paper")
    lost = {task: float(np.mean([cost(task, one, "settled") for one in runs.of(task).values()])) for task in tasks}
    return {task: value for task, value in lost.items() if not math.isnan(value)}


def _guesses(advice: dict[str, dict[str, float]]) -> list[str]:
    lines = [("task", "made with it", "points lost")]
    for name, made in (("advice", "yes"), ("advice-held-out", "no")):
        lines += [(task, made, f"{lost:.1f}") for task, lost in advice[name].items()]
    return _table(*lines)


_ADVICE = {"advice": (TASKS, regret), "advice-held-out": (HELD_OUT, held_out_regret)}
_HEAD = """# How accurate it is

<!-- Generated by: python benchmarks/accuracy_page.py > docs/evidence/accuracy.md -->

Every number that `predict`, `measure` and a first guess were off by, where it could be checked. A decade is a factor of
ten. `measure` certifies its eigenvalue: `residual` bounds the relative distance to an eigenvalue of the given
batch's matrix.
"""
_PREDICTED = """\
lambda_max by theory against `ns.measure`, five seeds or more for each row, statistics as trained and frozen, white
inputs ([all rows](../../results/theory-lambda.json); [where the theory ends](theory.md#how-far-it-reaches))."""
_TRAINED = """\
log10 of the largest rate that survives over eta\\*: 0 is agreement, above 0 training survives beyond eta\\*. An MLP of
width 1000 on MNIST, momentum 0.9 ([squared error](../../results/phase-mnist-mlp.json),
[cross-entropy](../../results/phase-mnist-mlp-cross-entropy.json)). With squared error eta\\* is where training ends.
With cross-entropy training goes on far beyond, and more so the larger gamma is. Four more diagrams are in
[Wei et al. 2019](reproductions/wei-2019.md)."""
_SETS = """\
A median belongs to a set of tasks. The same rate was tried on several sets, so it has several medians; this table has
all of them. Points are points of test accuracy or, for tasks without accuracy, per cent of the fall of the test loss.
In the race a run for which no rate was named counts as not trained. That explains the largest losses of the first
guess."""
_GUESSED = """\
Points of test accuracy that the rate named by `measure` loses against the best rate of a grid, mean of three seeds.
Details are under `advice` and `advice-held-out` in [claims of this project](reproductions/own-claims.md)."""


if __name__ == "__main__":
    print(page())
