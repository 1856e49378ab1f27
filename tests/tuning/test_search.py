"""The search tries the usual rate and its neighbours, goes on at an end of the ladder, and keeps its budget."""

import math

import pytest

from normscope.tuning.rehearsal import Rehearsal
from normscope.tuning.search import FEWEST_STEPS, MOST_STEPS, RATIO, next_wave, planned


def searched(plan, loss_at, judging=0.0):
    """All rehearsals of a search in which the loss of a rate is `loss_at(rate)` after a start at 2; None diverges."""
    known = []
    while wave := next_wave(plan, known):
        for lr in wave:
            loss = loss_at(lr)
            steps = plan.steps if loss is not None else 3
            losses = (2.0, *[2.0 if loss is None else loss] * (steps - 1))
            diverged = None if loss is not None else 2
            known.append(Rehearsal(lr, plan.steps, losses, diverged, passes=steps + judging))
    return known


def rates(known):
    return [each.lr for each in known]


def test_it_stops_where_the_best_rate_is_bracketed():
    known = searched(planned(0.1, 50), lambda lr: 1 + abs(math.log(lr / 0.1)))
    assert rates(known) == pytest.approx([0.1, 0.4, 0.025])


@pytest.mark.parametrize(
    ("best", "places"), [(0.1 * RATIO**2, [0, 1, -1, 2, 3]), (0.1 * RATIO**-2, [0, 1, -1, -2, -3])]
)
def test_it_climbs_while_the_best_rate_is_at_an_end(best, places):
    known = searched(planned(0.1, 50), lambda lr: 1 + abs(math.log(lr / best)) / 10)
    assert rates(known) == pytest.approx([0.1 * RATIO**place for place in places])


def test_equal_losses_are_no_reason_to_climb():
    assert len(searched(planned(0.1, 50), lambda lr: 1.0)) == 3
    assert len(searched(planned(0.1, 50), lambda lr: 1 + 0.001 / lr)) == 3


def test_it_goes_down_where_all_rates_diverge():
    known = searched(planned(0.1, 50), lambda lr: None if lr > 1e-4 else 1.0)
    assert min(rates(known)) < 1e-4
    assert sorted(rates(known), reverse=True)[0] == pytest.approx(0.1 * RATIO)


@pytest.mark.parametrize("budget", range(0, 400, 7))
@pytest.mark.parametrize("judging", [0.0, 4 / 3])
def test_the_budget_holds_whatever_the_losses_are(budget, judging):
    plan = planned(0.1, budget, judging)
    assert plan.steps == 0 or FEWEST_STEPS <= plan.steps <= MOST_STEPS
    for loss_at in (lambda lr: 1 / lr, lambda lr: lr, lambda lr: 1.0, lambda lr: None):
        known = searched(plan, loss_at, judging)
        used = sum(each.passes for each in known)
        assert used <= budget + 1e-9
        assert used <= plan.passes[1] + 1e-9
        if known and loss_at(1.0) is not None:
            assert used >= plan.passes[0] - 1e-9


def test_it_ends_far_from_the_usual_rate_whatever_the_budget():
    for loss_at in (lambda lr: -lr, lambda lr: None):
        assert len(searched(planned(0.1, 1e5), loss_at)) == 12


def test_rungs_are_numbered_by_rate():
    plan = planned(0.006, 50)
    assert [plan.place(plan.rate(place)) for place in range(-5, 6)] == list(range(-5, 6))
