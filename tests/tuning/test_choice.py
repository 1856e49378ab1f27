"""The choice lies between the usual rate and what the rehearsals showed, and its reason names both."""

import math

import pytest
from scipy import integrate

from normscope.tuning.choice import choose
from normscope.tuning.evidence import evidence
from normscope.tuning.prior import Prior
from normscope.tuning.rehearsal import Rehearsal
from normscope.tuning.search import planned

PLAN, USUAL = planned(0.1, 50), Prior(0.1, "the usual rate of SGD")


def made(lr, last, *, first=2.0, diverged_at=None):
    return Rehearsal(lr, 8, (first,) * 6 + (last, last), diverged_at)


def test_it_is_the_mean_of_the_density():
    known = [made(0.025, 1.05), made(0.1, 1.0), made(0.4, 1.02)]
    found = evidence(known)
    x = [math.log(rate / 0.1) for rate in found.rates]

    def density(at):
        inner = [x[0], x[1], x[2]]
        u = found.against
        if at <= inner[0]:
            value = u[0] + (u[0] - u[1]) / (x[1] - x[0]) * (x[0] - at)
        elif at >= inner[2]:
            value = u[2] + (u[2] - u[1]) / (x[2] - x[1]) * (at - x[2])
        else:
            left = 0 if at < inner[1] else 1
            share = (at - x[left]) / (x[left + 1] - x[left])
            value = (1 - share) * u[left] + share * u[left + 1]
        return math.exp(-value - at**2 / 2)

    def integral(function):
        return integrate.quad(function, -12, 12, points=x, limit=200)[0]

    total = integral(density)
    mean = integral(lambda at: at * density(at)) / total
    assert choose(PLAN, USUAL, known).lr == pytest.approx(0.1 * math.exp(mean), rel=1e-3)


def test_equal_losses_leave_the_usual_rate():
    choice = choose(PLAN, USUAL, [made(lr, 1.0) for lr in (0.025, 0.1, 0.4)])
    assert choice.lr == pytest.approx(0.1)
    assert "less than their noise" in choice.reason
    assert "the usual rate of SGD" in choice.reason


def test_clear_losses_overrule_the_usual_rate():
    known = [made(0.025, 1.9), made(0.1, 1.6), made(0.4, 1.2), made(1.6, 0.9), made(6.4, 1.5)]
    choice = choose(PLAN, USUAL, known)
    assert 0.8 < choice.lr < 2.5
    assert "lowest at 1.6" in choice.reason
    assert "budget bought" not in choice.reason


def test_a_best_rate_at_the_end_of_the_ladder_is_named_as_such():
    choice = choose(PLAN, USUAL, [made(0.025, 1.9), made(0.1, 1.6), made(0.4, 1.2)])
    assert "highest rate that the budget bought" in choice.reason


def test_divergence_bounds_the_rate_and_its_range():
    known = [made(0.025, 1.0), made(0.1, 1.0), made(0.4, 2.0, diverged_at=5)]
    choice = choose(PLAN, USUAL, known)
    assert choice.lr < 0.12
    assert choice.lr_range[1] < 0.4
    assert "0.4 diverged at step 5" in choice.reason
    near = choose(PLAN, USUAL, [made(0.025, 1.9), made(0.1, 0.1), made(0.15, 2.0, diverged_at=5)])
    assert 0.15 / 2 < near.lr < near.lr_range[1] < 0.15


def test_where_all_rates_diverged_a_quarter_of_the_lowest_is_named():
    choice = choose(PLAN, USUAL, [made(lr, 2.0, diverged_at=1) for lr in (0.025, 0.1, 0.4)])
    assert choice.lr == pytest.approx(0.025 / 4)
    assert choice.lr_range[1] < 0.025
    assert "Every rate that was tried diverged" in choice.reason


def test_the_range_is_a_factor_of_two_at_least_and_four_at_most():
    sharp = choose(PLAN, USUAL, [made(0.025, 1.9), made(0.1, 0.1), made(0.4, 1.9)])
    assert sharp.lr_range == pytest.approx((sharp.lr / 2, sharp.lr * 2))
    flat = choose(PLAN, USUAL, [])
    assert 2 < flat.lr_range[1] / flat.lr <= 4
    assert "Nothing was rehearsed" in flat.reason
