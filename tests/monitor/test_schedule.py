"""When a Monitor measures: steps by number, and a budget of time kept by a clock that is set by hand."""

from typing import Any

import numpy as np
import pytest
import torch

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
def test_the_budget_holds_at_every_step_after_the_first_look_is_paid_back(follows: bool) -> None:
    now = 0.0
    budget = Budget(0.1, clock=lambda: now)
    snapshots = 0
    paid_back = False
    for _ in range(2_000):
        budget.step()
        if budget.allows():
            snapshots += 1
            for seconds, after in ((3.0, False), (0.5, True))[: 1 + follows]:
                now += seconds
                budget.pay(seconds, follows=after)
        now += 1.0
        paid_back = paid_back or 0 < budget.used <= 0.1
        assert not paid_back or budget.used <= 0.1 + 1e-9
    assert budget.used > 0.095
    assert snapshots > 50


def test_the_share_is_of_the_training_and_stands_still_after_it() -> None:
    now = 0.0
    budget = Budget(0.1, clock=lambda: now)
    for step in range(11):
        budget.step()
        if step in (0, 5):
            now += 2.0
            budget.pay(2.0)
        now += 1.0
    assert budget.training == pytest.approx(10.0)
    assert budget.used == pytest.approx(0.4)
    now += 1e4
    assert budget.used == pytest.approx(0.4)
    assert not budget.allows()
