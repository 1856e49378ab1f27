"""The length: the right root, the bracket, and the bisection's bound."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from normscope.solve import Design, GDNPClassifier, Halfspace, convergence_bound, gdnp, named_loss
from normscope.solve.length import bisect, lowest_length, next_length
from normscope.solve.rates import length_bound_printed


@dataclass(frozen=True)
class Look:
    gamma: float
    value: float
    slope: float
    bend: float


def along(value, slope, bend=lambda g: 0.0):
    return lambda g: Look(g, float(value(g)), float(slope(g)), float(bend(g)))


# f = (g + 3)^2 (g - 2)^2 + g: minima near -3 (lower) and 2, a maximum between.
QUARTIC = np.polynomial.Polynomial.fromroots([-3, -3, 2, 2]) + np.polynomial.Polynomial([0, 1])
MINIMA = sorted(r.real for r in QUARTIC.deriv().roots() if QUARTIC.deriv(2)(r.real) > 0)


@pytest.mark.parametrize("bend", [QUARTIC.deriv(2), lambda g: 0.0], ids=["newton", "bisection"])
def test_the_lowest_minimum_is_taken_and_never_a_maximum(bend):
    at = along(QUARTIC, QUARTIC.deriv(), bend)
    assert lowest_length(at, convex=False).gamma == pytest.approx(MINIMA[0], abs=1e-12)
    # Downhill from either side of the maximum near -0.5, at which Newton's own point would end.
    assert next_length(at, at(-0.3)).gamma == pytest.approx(MINIMA[1], abs=1e-12)
    assert next_length(at, at(-0.7)).gamma == pytest.approx(MINIMA[0], abs=1e-12)


def test_a_small_slope_ends_the_search_at_a_minimum_only():
    at = along(QUARTIC, QUARTIC.deriv(), QUARTIC.deriv(2))
    maximum = next(r.real for r in QUARTIC.deriv().roots() if QUARTIC.deriv(2)(r.real) < 0)
    found = next_length(at, at(maximum + 1e-6), small=0.5)
    assert abs(found.slope) <= 0.5
    assert found.gamma == pytest.approx(MINIMA[1], abs=0.05)
    assert next_length(at, at(MINIMA[0] + 1e-3), small=0.5).gamma == MINIMA[0] + 1e-3


def test_there_may_be_none_and_that_is_said():
    falling = along(lambda g: -g, lambda g: -1.0)
    assert lowest_length(falling, convex=True) is None
    assert lowest_length(falling, convex=False) is None
    assert next_length(falling, falling(1.0)) is None
    for root, expected in ((5.0, None), (3.9, 3.9)):
        at = along(lambda g: (g - root) ** 2 / 2, lambda g: g - root, lambda g: 1.0)  # noqa: B023
        found = next_length(at, at(1.0), reach=4.0)
        assert (found and found.gamma) == (expected and pytest.approx(expected))


def test_a_slope_that_underflows_to_zero_has_not_turned():
    """1/(1 + e^g) falls for ever; beyond 745 its slope and its bend are zero."""

    def at(gamma):
        value, first, second = named_loss("sigmoid").evaluate(np.array(-gamma))
        return Look(gamma, float(value), -float(first), float(second))

    assert at(800.0).slope == 0.0
    assert next_length(at, at(1.0)) is None
    assert lowest_length(at, convex=False) is None


def noisy_sigmoid(seed=0):
    """Noisy labels, so that the minimum is finite."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((200, 3)) * np.array([1.0, 5.0, 0.2])
    signs = np.where(x[:, 0] + rng.standard_normal(200) > 0, -1.0, 1.0)
    return Halfspace(Design(x).signed(signs), named_loss("sigmoid"), alpha=1e-3), rng


def test_the_sigmoids_minimum_by_brute_force():
    """The best of 1,001 lengths of both signs."""
    problem, rng = noisy_sigmoid()
    for _ in range(20):
        ray = problem.ray(rng.standard_normal(3))
        values = [ray.at(g).value for g in np.linspace(-50, 50, 1001)]
        assert lowest_length(ray.at, convex=False).value <= min(values) + 1e-12


@pytest.mark.parametrize("seed", [115, 119, 126, 450])
def test_the_result_has_the_lowest_length_along_its_direction(seed):
    """Three far outliers: the minimum followed from the start ends above another one on the same ray."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((30, 2))
    y = np.where(x[:, 0] + 0.5 * rng.standard_normal(30) > 0, 1.0, -1.0)
    x[:3] *= rng.choice([5, 20, 60])
    y[:3] *= -1
    problem = Halfspace(Design(x).signed(-y), named_loss("sigmoid"), alpha=1e-3)
    found = gdnp(problem, rng.standard_normal(2), max_iter=500, tol=1e-5)
    assert found.reason == "tol"
    (moved,) = np.flatnonzero(found.history["step"] == 0.0)
    assert found.history["objective"][-1] < 0.7 * found.history["objective"][moved - 1]
    assert found.gamma * found.history["gamma"][0] < 0.0
    ray = problem.ray(found.direction)
    values = [ray.at(g).value for g in np.linspace(-300, 300, 3001)]
    assert found.history["objective"][-1] <= min(values) + 1e-9


def test_newtons_point_saves_looks():
    """Of a convex ray, to rounding: seven looks where halving a bracket takes fifty."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 3))
    signs = np.where(x[:, 0] + rng.standard_normal(500) > 0, -1.0, 1.0)
    ray = Halfspace(Design(x).signed(signs), named_loss("softplus")).ray(np.array([1.0, 0.2, -0.1]))
    looks = []

    def counted(gamma, bend=1.0):
        point = ray.at(gamma)
        looks.append(gamma)
        return Look(gamma, point.value, point.slope, bend * point.bend)

    fast = lowest_length(counted, convex=True)
    few, looks[:] = len(looks), []
    slow = lowest_length(lambda gamma: counted(gamma, bend=0.0), convex=True)
    assert fast.gamma == pytest.approx(slow.gamma, rel=1e-12)
    assert few <= 10
    assert len(looks) > 4 * few


def test_a_maximum_along_the_ray_costs_the_accuracy():
    """What the rule is for. Wrong labels near the boundary put a plus-to-minus root on the other side of zero."""
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1], 200)
    x = rng.standard_normal((400, 2)) * 0.2 + np.where(y == 1, 1.0, -1.0)[:, None]
    x[::20] *= -0.02
    model = GDNPClassifier(loss="sigmoid", alpha=1e-6, fit_intercept=False).fit(x, y)
    assert model.score(x, y) == 0.95
    problem = Halfspace(Design(x).signed(np.where(y == 1, -1.0, 1.0)), named_loss("sigmoid"), alpha=1e-6)
    ray = problem.ray(model.coef_[0])
    grid = np.linspace(-50, 50, 5001)
    points = [ray.at(g) for g in grid]
    maxima = [here for here, after in itertools.pairwise(points) if here.slope > 0.0 > after.slope]
    assert len(maxima) == 1
    assert np.mean((x @ (maxima[0].gamma * ray.w) > 0) == y) == pytest.approx(0.05)
    assert lowest_length(ray.at, convex=False).gamma > 0.0
    for start in (maxima[0].gamma + 0.5, maxima[0].gamma - 0.5):
        found = next_length(ray.at, ray.at(start))
        assert found is None or found.bend > 0.0


def test_halvings_keep_the_corrected_bound_and_scaling_breaks_the_printed_one():
    """slope = c (g - root): both sides known. Scale the loss by c; no bend, so that every look is a halving."""
    mu, root, low, high = 0.5, 0.3, -1.0, 2.0
    broken = 0
    for c in (1.0, 1e3):
        at = along(lambda g: 0.0, lambda g: c * (g - root))  # noqa: B023
        for halvings in range(1, 30):
            found = bisect(at, at(low), at(high), steps=halvings).gamma
            square = (c * (found - root)) ** 2
            bound = convergence_bound("length", halvings, mu=mu, lipschitz=1.0, zeta=c, width=high - low)
            assert square <= bound
            broken += square > length_bound_printed(halvings, mu=mu, zeta=c, width=high - low)
    assert broken > 0
