"""The result of every method on every task and seed, from the store of runs.

Calibration looks at other development tasks alone: for a development task at all the others of its family of
optimizers, for a held-out task at all development tasks of the family.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from grid import SEEDS, Cell, diverged, score
from opponents import gen
from opponents.entrants import training_of
from opponents.replacing import SETTINGS
from regret import Curve
from task import load, names

Records = Mapping[str, Mapping[str, Any]]
FACTORS = tuple(10 ** (step / 2) for step in range(-6, 7))
SGD_FAMILY = ("sgd", "momentum", "nesterov")
CONSTANTS = {"constant 0.1 / 1e-3": (0.1, 1e-3), "constant 0.01 / 3e-4": (0.01, 3e-4)}
CALIBRATED = ("torch-lr-finder", "lightning", "fastai", "first guess", "eta*/2")
SEARCHES = ("random search", "asha")
OURS = "tune"


@dataclass(frozen=True)
class Outcome:
    """One task and seed: regret, whether it diverged or failed, the rate, and the search's share of the steps."""

    regret: float
    diverged: bool
    failed: bool
    lr: float | None
    cost: float


Outcomes = dict[tuple[str, int], Outcome]


def family(task: str) -> str:
    """The family of the task's optimizer: SGD or Adam."""
    return "SGD" if load(task).optimizer in SGD_FAMILY else "Adam"


def others(task: str, tasks: Mapping[str, Curve]) -> list[str]:
    """The development tasks of the same family, without the task itself."""
    return [t for t in names("development") if t in tasks and t != task and family(t) == family(task)]


def _chosen(
    task: str, tasks: Mapping[str, Curve], choices: Any, regret: Callable[[str, int, Any], float | None]
) -> Any:
    """The choice with the least mean regret over the other tasks; None where one of them has no result."""
    means = {}
    for choice in choices:
        values = [regret(t, seed, choice) for t in others(task, tasks) for seed in SEEDS]
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        means[choice] = np.mean(known)
    return min(means, key=lambda choice: means[choice])


def at_grid(tasks: Mapping[str, Curve], records: Records, rate_of: Callable[[str], float]) -> Outcomes:
    """A constant rate of the grid."""
    found: Outcomes = {}
    for task in tasks:
        for seed in SEEDS:
            lr = rate_of(task)
            record = records.get(Cell("grid", task, seed, lr).key)
            if record is not None:
                found[task, seed] = _outcome(tasks[task], record, lr, 0.0)
    return found


def _outcome(curve: Curve, record: Mapping[str, Any], lr: float | None, cost: float) -> Outcome:
    seed, value = record["seed"], score(record)
    return Outcome(curve.regret(seed, value), diverged(record), curve.failed(seed, value), lr, cost)


def constants(tasks: Mapping[str, Curve], records: Records) -> dict[str, Outcomes]:
    """The two rates in common use, and the rate calibrated on the other tasks."""

    def calibrated(task: str) -> float:
        rates = sorted({lr for t in others(task, tasks) for lr in tasks[t].rates})
        lr: float = _chosen(task, tasks, rates, lambda t, seed, lr: tasks[t].regret_at(seed, lr))
        return min(tasks[task].rates, key=lambda rate: abs(np.log(rate / lr)))

    found = {
        name: at_grid(tasks, records, lambda task, pair=pair: pair[family(task) == "Adam"])  # type: ignore[misc]
        for name, pair in CONSTANTS.items()
    }
    return found | {"constant, calibrated": at_grid(tasks, records, calibrated)}


def searched(rule: str, tasks: Mapping[str, Curve], records: Records) -> Outcomes:
    """An entrant that names a rate, from its search and the training that followed."""
    found: Outcomes = {}
    for task in tasks:
        for seed in SEEDS:
            name = records.get(Cell("name", task, seed, 0.0, rule=rule).key)
            if name is None:
                continue
            cost = name["search_steps"] / load(task).steps
            cell = training_of(dict(name))
            if cell is None:
                curve = tasks[task]
                found[task, seed] = Outcome(curve.regret(seed, curve.starts[seed]), False, True, None, cost)
            elif (record := records.get(cell.key)) is not None:
                found[task, seed] = _outcome(tasks[task], record, name["lr"], cost)
    return found


def calibrated_names(tasks: Mapping[str, Curve], records: Records) -> list[dict[str, Any]]:
    """Answers of the entrants in CALIBRATED, their rate multiplied by a factor chosen on the other tasks."""
    made = []
    for rule in CALIBRATED:
        rates = {(r["task"], r["seed"]): r["lr"] for r in records.values() if r["what"] == "name" and r["rule"] == rule}

        def regret(task: str, seed: int, factor: float, rates: Any = rates) -> float | None:
            if (task, seed) not in rates:
                return None
            lr, curve = rates[task, seed], tasks[task]
            return curve.regret(seed, curve.starts[seed]) if lr is None else curve.regret_at(seed, factor * lr)

        for task, seed in rates:
            if task not in tasks:
                continue
            factor = _chosen(task, tasks, FACTORS, regret)
            if factor is None:
                continue
            record = dict(records[Cell("name", task, seed, 0.0, rule=rule).key])
            rule_name = f"{rule}, calibrated"
            record |= {"rule": rule_name, "key": Cell("name", task, seed, 0.0, rule=rule_name).key, "factor": factor}
            record["lr"] = None if record["lr"] is None else factor * record["lr"]
            made.append(record)
    return made


def one_setting(
    cell: Callable[[str, int, float], Cell], settings: tuple[float, ...], tasks: Mapping[str, Curve], records: Records
) -> tuple[Outcomes, Outcomes]:
    """A method with one setting: as shipped (the first), and with the setting chosen on the other tasks."""

    def outcome(task: str, seed: int, setting: float) -> Outcome | None:
        record = records.get(cell(task, seed, setting).key)
        return None if record is None else _outcome(tasks[task], record, None, 0.0)

    def regret(task: str, seed: int, setting: float) -> float | None:
        found = outcome(task, seed, setting)
        return None if found is None else found.regret

    shipped, calibrated = {}, {}
    for task in tasks:
        setting = _chosen(task, tasks, settings, regret) if len(settings) > 1 else None
        for seed in SEEDS:
            shipped[task, seed] = outcome(task, seed, settings[0])
            calibrated[task, seed] = None if setting is None else outcome(task, seed, setting)
    return _known(shipped), _known(calibrated)


def _known(outcomes: Mapping[tuple[str, int], Outcome | None]) -> Outcomes:
    return {cell: outcome for cell, outcome in outcomes.items() if outcome is not None}


def same_optimizer(tasks: Mapping[str, Curve], records: Records) -> dict[str, Outcomes]:
    """All methods that keep the task's optimizer, ours among them; those without a result are left out."""
    records = {**records, **{record["key"]: record for record in calibrated_names(tasks, records)}}
    found = {rule: searched(rule, tasks, records) for rule in (OURS, *SEARCHES)}
    found |= constants(tasks, records)
    for rule in CALIBRATED:
        for name in (rule, f"{rule}, calibrated"):
            found[name] = searched(name, tasks, records)

    def cell(task: str, seed: int, setting: float) -> Cell:
        return Cell("gen", task, seed, setting, gen.left(load(task)), "gen")

    found["GeN"], found["GeN, calibrated"] = one_setting(cell, gen.SETTINGS, tasks, records)
    return {name: outcomes for name, outcomes in found.items() if outcomes}


def replacing_optimizer(tasks: Mapping[str, Curve], records: Records) -> dict[str, Outcomes]:
    """All methods that take the optimizer's place."""
    found = {}
    for rule, settings in SETTINGS.items():

        def cell(task: str, seed: int, setting: float, rule: str = rule) -> Cell:
            return Cell("free", task, seed, setting, rule=rule)

        found[rule], found[f"{rule}, calibrated"] = one_setting(cell, settings, tasks, records)
    return {name: outcomes for name, outcomes in found.items() if outcomes}
