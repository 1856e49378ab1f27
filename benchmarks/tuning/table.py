"""The tables of the race, and its results as JSON, from a store of runs.

    python benchmarks/tuning/table.py --store DIR [DIR ...] --out benchmarks/tuning/results

Writes race.json and race.md.
"""

import argparse
import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from grid import SEEDS
from methods import OURS, Outcomes, replacing_optimizer, same_optimizer
from regret import Curve, curves, interval, task_means
from store import Store
from task import FOLDERS, load, names

LOSS = 0.5
Records = Mapping[str, Mapping[str, Any]]
Methods = Mapping[str, Outcomes]


def regrets(outcomes: Outcomes) -> dict[tuple[str, int], float]:
    """The regret of each task and seed."""
    return {cell: outcome.regret for cell, outcome in outcomes.items()}


def summary(outcomes: Outcomes, ours: Outcomes | None) -> dict[str, Any]:
    """The row of one method: mean regret with its interval, worst task, divergences, cost, difference to ours."""
    values = regrets(outcomes)
    means = task_means(values)
    worst = max(means, key=lambda task: means[task])
    seeds = [x for (task, _), x in values.items() if task == worst]
    row: dict[str, Any] = {
        "tasks": len(means),
        "runs": len(values),
        "mean": float(np.mean(list(means.values()))),
        "interval": interval(values),
        "median": float(np.median(list(means.values()))),
        "worst": means[worst],
        "worst_task": worst,
        "worst_stderr": float(np.std(seeds, ddof=1) / np.sqrt(len(seeds))) if len(seeds) > 1 else None,
        "diverged": sum(outcome.diverged for outcome in outcomes.values()),
        "failed": sum(outcome.failed for outcome in outcomes.values()),
        "unnamed": sum(outcome.lr is None and outcome.cost > 0 for outcome in outcomes.values()),
        "cost": float(np.mean([outcome.cost for outcome in outcomes.values()])),
    }
    if ours is not None and (shared := ours.keys() & outcomes.keys()):
        own = regrets(ours)
        row["above_ours"] = float(np.mean([values[cell] - own[cell] for cell in shared]))
        row["above_ours_interval"] = low, high = interval(values, own)
        row["verdict"] = "worse" if low > 0 else "better" if high < 0 else "equal"
    return row


def method_table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Markdown, the least mean regret first."""
    lines = [
        "| method | n | mean regret [95 %] | median | worst task | diverged | failed | no rate | search, % of steps "
        "| above tune [95 %] | against tune |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in sorted(rows.items(), key=lambda item: item[1]["mean"]):
        low, high = row["interval"]
        spread = "" if row["worst_stderr"] is None else f" ± {row['worst_stderr']:.1f}"
        above = verdict = ""
        if "verdict" in row:
            above = "{:+.2f} [{:+.2f}, {:+.2f}]".format(row["above_ours"], *row["above_ours_interval"])
            verdict = row["verdict"]
        lines.append(
            f"| {name} | {row['tasks']} x {row['runs'] // row['tasks']} | {row['mean']:.2f} [{low:.2f}, {high:.2f}] | "
            f"{row['median']:.2f} | {row['worst']:.1f}{spread} ({row['worst_task']}) | {row['diverged']} | "
            f"{row['failed']} | {row['unnamed']} | {100 * row['cost']:.1f} | {above} | {verdict} |"
        )
    return lines


def task_table(tasks: Mapping[str, Curve], methods: Methods) -> list[str]:
    """Markdown: each task with the grid's best rate, our rates and the regrets of the strongest methods."""
    compared = [name for name in (OURS, *_strongest(methods)) if name in methods]
    means = {name: task_means(regrets(methods[name])) for name in compared}
    lines = [
        "| task | optimizer | best rate of the grid | rates of tune | " + " | ".join(compared) + " |",
        "|---|---|---|---|" + "---|" * len(compared),
    ]
    for task in sorted(tasks):
        ours = methods.get(OURS, {})
        rates = ", ".join(f"{ours[task, s].lr:.2g}" for s in SEEDS if (task, s) in ours and ours[task, s].lr)
        cells = [f"{means[name][task]:.2f}" if task in means[name] else "" for name in compared]
        lines.append(
            f"| {task} | {load(task).optimizer} | {tasks[task].best():g} | {rates} | " + " | ".join(cells) + " |"
        )
    return lines


def _strongest(methods: Methods, count: int = 4) -> list[str]:
    means = {name: np.mean(list(task_means(regrets(o)).values())) for name, o in methods.items() if name != OURS}
    return sorted(means, key=lambda name: means[name])[:count]


def losses(methods: Methods) -> list[str]:
    """The tasks on which an opponent beats ours by more than `LOSS`, as lines of Markdown."""
    if OURS not in methods:
        return []
    ours = task_means(regrets(methods[OURS]))
    others = {name: task_means(regrets(o)) for name, o in methods.items() if name != OURS}
    lines = []
    for task, own in sorted(ours.items(), key=lambda item: -item[1]):
        ahead = {name: means[task] for name, means in others.items() if task in means and means[task] < own - LOSS}
        if ahead:
            best = min(ahead, key=lambda name: ahead[name])
            lines.append(
                f"- {task}: {own:.2f}; {len(ahead)} of {len(others)} methods are ahead by more than {LOSS}, "
                f"first {best} with {ahead[best]:.2f}."
            )
    return lines


def steadiness(tasks: Mapping[str, Curve], records: Records) -> dict[str, Any]:
    """How steady `tune` is over its seeds, and how its range compares with the grid."""
    named: dict[str, list[Mapping[str, Any]]] = {}
    for record in records.values():
        if record["what"] == "name" and record["rule"] == OURS and record["lr"] is not None and record["range"]:
            named.setdefault(record["task"], []).append(record)
    inside, spans, held = {}, [], []
    for task, answers in sorted(named.items()):
        if task not in tasks:
            continue
        low, high = (float(np.median([answer["range"][end] for answer in answers])) for end in (0, 1))
        inside[task] = [sum(low <= answer["lr"] <= high for answer in answers), len(answers)]
        spans += [answer["range"][1] / answer["range"][0] for answer in answers]
        held += [
            answer["range"][0] <= tasks[task].best() <= answer["range"][1]
            for answer in answers
            if answer["seed"] in SEEDS
        ]
    if not inside:
        return {}
    return {
        "inside_the_median_range": inside,
        "median_span": float(np.median(spans)),
        "holds_the_best_rate": float(np.mean(held)),
    }


def race(tasks: Mapping[str, Curve], records: Records, same: Methods, other: Methods) -> dict[str, Any]:
    """Everything about one set of tasks, as plain JSON, with its tables."""
    left_out = sorted(name for found in (same, other) for name, o in found.items() if not _balanced(o, tasks))
    same, other = ({name: _balanced(o, tasks) for name, o in found.items()} for found in (same, other))
    result: dict[str, Any] = {"tasks": sorted(tasks), "steadiness": steadiness(tasks, records), "left out": left_out}
    for title, methods in (("same optimizer", same), ("replacing the optimizer", other)):
        result[title] = {
            name: summary(outcomes, None if name == OURS else same.get(OURS)) | {"cells": _cells(outcomes)}
            for name, outcomes in methods.items()
            if outcomes
        }
    result["lines"] = _lines(tasks, result, {name: o for name, o in same.items() if o})
    return result


def _balanced(outcomes: Outcomes, tasks: Mapping[str, Curve]) -> Outcomes:
    """The outcomes on `tasks`, of the seeds that have a result on all of them."""
    seeds = [seed for seed in SEEDS if all((task, seed) in outcomes for task in tasks)]
    return {cell: outcome for cell, outcome in outcomes.items() if cell[0] in tasks and cell[1] in seeds}


def _cells(outcomes: Outcomes) -> list[list[Any]]:
    """Task, seed, regret, diverged, failed, rate, cost."""
    return [[t, s, round(o.regret, 4), o.diverged, o.failed, o.lr, round(o.cost, 4)] for (t, s), o in outcomes.items()]


def _lines(tasks: Mapping[str, Curve], result: Mapping[str, Any], same: Methods) -> list[str]:
    lines = ["### With the task's optimizer", "", *method_table(result["same optimizer"])]
    verdicts = [row.get("verdict") for row in result["same optimizer"].values()]
    if OURS in same:
        lines += [
            "",
            f"Shown worse than tune: {verdicts.count('worse')} of {len(verdicts) - 1}; shown better: "
            f"{verdicts.count('better')}.",
        ]
    lines += ["", "### Replacing the optimizer", "", *method_table(result["replacing the optimizer"])]
    if result["left out"]:
        lines += ["", f"Left out, because no seed is finished on every task: {', '.join(result['left out'])}."]
    lost = losses(same)
    lines += ["", "### Where tune loses", "", *(lost or ["Nowhere by more than 0.5."])] if OURS in same else []
    steady = result["steadiness"]
    if steady:
        counts = steady["inside_the_median_range"].values()
        lines += [
            "",
            f"Steadiness: {sum(a for a, _ in counts)} of {sum(b for _, b in counts)} rates lie inside the median range "
            f"of their task. The range spans a factor of {steady['median_span']:.2g} in the median and holds the "
            f"grid's best rate in {100 * steady['holds_the_best_rate']:.0f} % of the tasks and seeds.",
        ]
    return [*lines, "", "### By task", "", *task_table(tasks, same)]


def merged(folders: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """The runs of several stores."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        found |= Store(folder).records
    return found


def environment(records: Records) -> dict[str, Any]:
    """The versions and the machine of the runs and of this analysis."""
    return {
        "torch of the runs": sorted({r["torch"] for r in records.values()}),
        "runs": len(records),
        "core hours": round(sum(r["seconds"] for r in records.values()) / 3600, 2),
        "keys": hashlib.sha256("\n".join(sorted(records)).encode()).hexdigest()[:16],
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "seeds": len(SEEDS),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    records = merged(args.store)
    tasks = curves(records)
    result: dict[str, Any] = {"schema": 1, "environment": environment(records)}
    lines = ["# Results of the learning-rate race", "", "Generated by `table.py`; the rules are in `README.md`.", ""]
    same, other = same_optimizer(tasks, records), replacing_optimizer(tasks, records)
    sets = {folder: {t: tasks[t] for t in names(folder) if t in tasks} for folder in FOLDERS}
    for title, chosen in {"all": tasks, **sets}.items():
        if chosen:
            result[title] = race(chosen, records, same, other)
            heading = f"## {title.capitalize()} ({len(chosen)} tasks, {len(SEEDS)} seeds)"
            lines += [heading, "", *result[title].pop("lines"), ""]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "race.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.out / "race.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
