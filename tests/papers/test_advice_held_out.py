"""The rate to start with on tasks it was not made on: its regret, and the numbers that `measure` quotes."""

import math
from pathlib import Path
from statistics import mean, median

import numpy as np
import pytest

from normscope.loss_kinds import kind_by_name
from normscope.losses import LOSSES
from normscope.papers import Store
from normscope.papers.entries import advice, advice_held_out
from normscope.papers.experiment import Place
from normscope.papers.experiments import advice as advising
from normscope.papers.experiments.advice_held_out import AGAIN, HELD_OUT, NORMALIZED, TASKS
from normscope.stability.first_guess_evidence import COST, COST_OF_THEORY, TESTED_BATCH
from normscope.stability.optimizer_rules import ADAM, MOMENTUM, PLAIN

STORED = Path(__file__).parents[2] / "results/reproduce"
CURVES = {
    "rate": [0.01, 0.1, 1.0],
    "test_accuracy": [0.9, 0.97, math.nan],
    "measure": 0.1,
    "critical": 0.5,
    "at": {
        "start": {"rate": 0.4, "test_accuracy": math.nan},
        "measure": {"rate": 0.05, "test_accuracy": 0.98},
        "predict": {"rate": math.nan, "test_accuracy": math.nan},
    },
}


def test_regret_is_of_training_at_the_rate_itself():
    task = "MNIST CNN, squared error, momentum"
    assert advice_held_out.regret(task, CURVES, "measure") == pytest.approx(-1)
    # Diverged: one class in ten.
    assert advice_held_out.regret(task, CURVES, "start") == pytest.approx(87)
    assert math.isnan(advice_held_out.regret(task, CURVES, "predict"))
    # With squared error and momentum the smaller of both; else the critical step's.
    assert advice_held_out.regret(task, CURVES, "settled") == pytest.approx(-1)
    plain = "MNIST CNN with GroupNorm, squared error, SGD"
    assert advice_held_out.regret(plain, CURVES, "settled") == pytest.approx(87)


def test_rates_are_trained_at_themselves():
    task = "digits MLP with RMSNorm, squared error, momentum"
    settings = HELD_OUT["digits"].plan(task, "small") | {"steps": 3, "spacing": 2.0, "width": 16}
    curves = advising.run(settings, 0, Place())
    assert list(curves["at"]) == ["settled", "predict", "measure", "range"]
    for adviser, trained in curves["at"].items():
        assert trained["rate"] == pytest.approx(advising.named(TASKS[task], curves, adviser), nan_ok=True)
        assert math.isnan(trained["rate"]) or 0 <= trained["test_accuracy"] <= 1


def _costs(adviser):
    """Mean regret of every task with a normalizer that is stored, by loss and optimizer."""
    store, found = Store(STORED), {}
    names = {"sgd": PLAIN, "momentum": MOMENTUM, "adam": ADAM}
    made = [(advising.ADVICE, advising.TASKS, advice.regret), (HELD_OUT, NORMALIZED | AGAIN, advice_held_out.regret)]
    for experiments, tasks, regret in made:
        for task, settings in tasks.items():
            runs = store.runs(experiments[settings["data"]], task, "paper")
            cost = mean(regret(task, run.curves, adviser) for run in runs)
            key = kind_by_name(LOSSES[settings["loss"]]), names[settings["optimizer"]]
            if not math.isnan(cost):
                found.setdefault(key, []).append(cost)
    return found


def _quoted(costs):
    return len(costs), pytest.approx(median(costs), abs=0.051), pytest.approx(max(costs), abs=0.051)


def test_what_measure_quotes_is_what_is_stored():
    costs = _costs("settled")
    assert {key: _quoted(found) for key, found in costs.items()} == COST
    theory: dict[str, list[float]] = {}
    for (kind, _), found in _costs("predict").items():
        theory.setdefault(kind, []).extend(found)
    assert {kind: _quoted(found) for kind, found in theory.items()} == COST_OF_THEORY


def test_the_tasks_are_those_that_measure_names():
    tasks = [*advising.TASKS.values(), *TASKS.values()]
    assert {task["network"] for task in tasks} == {"mlp", "cnn", "vgg11", "resnet18"}
    assert {task["data"] for task in tasks} == {"digits", "mnist", "cifar10"}
    assert not any("batch_size" in task for task in tasks)
    everywhere = (advising.SETTINGS["paper"], *(each.settings["paper"] for each in HELD_OUT.values()))
    assert {settings["batch_size"] for settings in everywhere} == {TESTED_BATCH}


def _best_shares(tasks, quantity):
    """The share of `quantity` with the least mean regret over all tasks but one, and what it costs that one."""
    shares, costs = np.geomspace(0.03, 2, 60), []
    for task in tasks:
        runs = Store(STORED).runs(advising.ADVICE[advising.TASKS[task]["data"]], task, "paper")
        rows = []
        for curves in (run.curves for run in runs):
            reached = np.nan_to_num(np.array(curves["test_accuracy"], dtype=float), nan=advice.CHANCE)
            between = np.interp(np.log(shares * curves[quantity]), np.log(curves["rate"]), reached)
            rows.append(100 * (reached.max() - between))
        costs.append(np.mean(rows, axis=0))
    best = [int(np.delete(costs, i, axis=0).mean(axis=0).argmin()) for i in range(len(tasks))]
    return shares[best], [float(cost[i]) for cost, i in zip(costs, best, strict=True)]


def test_the_critical_steps_share_is_the_same_whichever_task_is_left_out():
    """What `starting.py` says of its choice; between two rates of the grid accuracy is interpolated."""
    squared = [task for task, settings in advising.TASKS.items() if settings["loss"] == "half_mse"]
    entropy = [task for task, settings in advising.TASKS.items() if settings["loss"] == "cross_entropy"]
    shares, costs = _best_shares(squared, "critical")
    assert max(shares) / min(shares) < 1.01
    assert max(costs) < 1.6
    shares, costs = _best_shares(entropy, "critical")
    assert max(shares) / min(shares) < 1.5
    assert max(costs) < 2.1
    for quantity in ("predict", "measure"):
        shares, costs = _best_shares(squared, quantity)
        assert max(shares) / min(shares) > 1.5
        assert max(costs) > 20
