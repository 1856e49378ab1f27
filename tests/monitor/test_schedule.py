"""When a Monitor takes snapshots: steps by number, and a budget of gradient passes."""

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from normscope import Monitor, Setup
from normscope.monitor.probes.covariate_shift import ShiftProbe
from normscope.monitor.probes.curvature import CurvatureProbe
from normscope.monitor.probes.landscape import LandscapeProbe
from normscope.monitor.record import StoredResult
from normscope.monitor.schedule import Budget, schedule


@pytest.mark.parametrize("every", [5, np.int64(5), torch.tensor(5)])
def test_every_so_many(every: Any) -> None:
    assert [step for step in range(12) if schedule(every)(step)] == [0, 5, 10]


@pytest.mark.parametrize("every", [[0, 7], (7, 0), {0, 7}, np.array([0, 7]), torch.tensor([0, 7]), range(0, 14, 7)])
def test_a_list_of_steps(every: Any) -> None:
    assert [step for step in range(12) if schedule(every)(step)] == [0, 7]


@pytest.mark.parametrize("every", [10.0, None, ["0"], [1.5], "often"])
def test_what_is_no_schedule_is_said(every: Any) -> None:
    with pytest.raises(ValueError, match="every is a number of steps, 'log', or the steps themselves"):
        schedule(every)


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("each_step", [1, 4])
def test_the_budget_holds_at_every_step_after_the_first_snapshot_is_paid_back(follows: bool, each_step: int) -> None:
    budget = Budget(0.1, each_step)
    snapshots = 0
    paid_back = False
    for _ in range(2_000):
        budget.step()
        if budget.allows():
            snapshots += 1
            for passes, after in ((3.0, False), (1 / 3, True))[: 1 + follows]:
                budget.pay(passes, 0.0, follows=after)
        paid_back = paid_back or 0 < budget.used <= 0.1
        assert not paid_back or budget.used <= 0.1 + 1e-9
    assert budget.used > 0.095
    assert snapshots > 50 * each_step


def test_the_clock_decides_nothing() -> None:
    steps = []
    for speed in (1.0, 1e-6, 1e6):
        budget = Budget(0.1, clock=partial(next, itertools.count(0, speed)))
        allowed = []
        for step in range(500):
            budget.step()
            if budget.allows():
                allowed.append(step)
                budget.pay(5.0, 1.0)
        steps.append(allowed)
    assert steps[0] == steps[1] == steps[2] == [0, *range(99, 500, 50)]


def test_the_share_of_time_is_of_the_training_and_stands_still_after_it() -> None:
    now = 0.0
    budget = Budget(0.1, clock=lambda: now)
    for step in range(11):
        budget.step()
        if step in (0, 5):
            now += 2.0
            budget.pay(1.0, 2.0)
        now += 1.0
    assert budget.time_used == pytest.approx(0.4)
    now += 1e4
    assert budget.time_used == pytest.approx(0.4)
    assert budget.used == pytest.approx(2 / 11)
    assert not budget.allows()


def passes_of(measure: list[Any], budget: float | None = None, **options: Any) -> Monitor:
    """A Monitor of a small network over 100 steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    setup = Setup(model, nn.CrossEntropyLoss(), **options)
    monitor = Monitor(setup, every=1, measure=measure, budget=budget, on_error="raise")
    x, y = torch.randn(8, 3), torch.randint(2, (8,))
    for _ in range(1 if budget is None else 100):
        monitor.step(x, y, lr=0.1)
    return monitor


class Passes:
    """So many forwards and gradients of the loss."""

    name, forward_only = "passes", False

    def __init__(self, forwards: int, gradients: int) -> None:
        self.forwards, self.gradients = forwards, gradients

    def measure(self, snapshot: Any) -> Any:
        for _ in range(self.forwards):
            snapshot.at.value()
        for _ in range(self.gradients):
            snapshot.at.gradient()
        return StoredResult({})


@pytest.mark.parametrize(
    ("measure", "passes"),
    [
        # One gradient at the present parameters comes before all of these.
        ([Passes(0, 0)], 1),
        ([Passes(6, 0)], 3),
        ([Passes(2, 5)], 6 + 2 / 3),
        ([LandscapeProbe(factors=(0.5, 1, 2))], 4),
        # The second of the two layers once more, behind the updated first one.
        ([ShiftProbe("gradient")], 2),
    ],
)
def test_passes_are_counted(measure: list[Any], passes: float) -> None:
    assert passes_of(measure)._budget.spent == pytest.approx(passes)


def test_products_of_the_curvature_probe_are_counted() -> None:
    monitor = passes_of([CurvatureProbe()])
    products = monitor.records[0].results["curvature"].products
    # A Gauss-Newton product is a forward with tangents and a backward, 4/3 of a pass. Beside the products: the gradient
    # at the present parameters, and the forward whose graph all products share.
    assert monitor._budget.spent == pytest.approx(1 + 1 / 3 + 4 / 3 * products, abs=2 / 3)


def test_snapshots_come_at_the_steps_that_their_passes_allow() -> None:
    """4 passes a snapshot at 10 %: one more is allowed when 80 steps, or 80 / accumulate, are done."""
    three = LandscapeProbe(factors=(0.5, 1, 2))
    assert [record.step for record in passes_of([three], 0.1).records] == [0, 79]
    fourfold = [record.step for record in passes_of([three], 0.1, accumulate=4).records]
    assert fourfold == [0, 19, 29, 39, 49, 59, 69, 79, 89, 99]
    (note,) = [note for note in passes_of([three], 0.1).notes if "budget" in note]
    assert "measuring took 8.0% of the training's gradient passes" in note
