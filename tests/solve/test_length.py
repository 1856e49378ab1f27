"""The length: the right root, the bracket, and the bisection's bound."""

import numpy as np
import pytest

from normscope.solve import Design, GDNPClassifier, Halfspace, convergence_bound, named_loss
from normscope.solve.length import bisect, lowest_length, next_length
from normscope.solve.rates import length_bound_printed


def test_the_lowest_minimum_is_taken_and_never_a_maximum():
    """f = (g + 3)^2 (g - 2)^2 + g: minima near -3 (lower) and 2, a maximum between."""
    polynomial = np.polynomial.Polynomial.fromroots([-3, -3, 2, 2]) + np.polynomial.Polynomial([0, 1])
    slope = polynomial.deriv()
    found = lowest_length(slope, polynomial, convex=False)
    minima = [r.real for r in slope.roots() if abs(r.imag) < 1e-9 and slope.deriv()(r.real) > 0]
    assert found == pytest.approx(min(minima, key=polynomial))
    upper = next_length(slope, 1.0, 0.1, small=0.0)
    assert upper == pytest.approx(max(minima))


def test_there_may_be_none_and_that_is_said():
    def falling(gamma):
        return -1.0

    assert lowest_length(falling, lambda g: -g, convex=True) is None
    assert lowest_length(falling, lambda g: -g, convex=False) is None
    assert next_length(falling, 1.0, 0.1, small=0.0) is None
    assert next_length(lambda g: g - 5.0, 1.0, 0.1, small=0.0, reach=4.0) is None
    assert next_length(lambda g: g - 3.9, 1.0, 100.0, small=0.0, reach=4.0) == pytest.approx(3.9)


def test_the_sigmoids_minimum_by_brute_force():
    """Noisy labels, so that the minimum is finite; the best of 20,000 lengths of both signs."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 3)) * np.array([1.0, 5.0, 0.2])
    signs = np.where(x[:, 0] + rng.standard_normal(200) > 0, -1.0, 1.0)
    problem = Halfspace(Design(x).signed(signs), named_loss("sigmoid"), alpha=1e-3)
    for _ in range(20):
        ray = problem.ray(rng.standard_normal(3))
        grid = np.linspace(-50, 50, 20_001)
        values = [ray.value(g) for g in grid[::20]]
        assert ray.value(ray.first_length()) <= min(values) + 1e-12


def test_a_maximum_along_the_ray_costs_the_accuracy():
    """What the rule is for: at a plus-to-minus root of the sigmoid's slope nearly every sample is wrong."""
    rng = np.random.default_rng(1)
    y = np.repeat([0, 1], 200)
    x = rng.standard_normal((400, 2)) * 0.3 + np.where(y == 1, 1.0, -1.0)[:, None]
    model = GDNPClassifier(loss="sigmoid", alpha=1e-3).fit(x, y)
    assert model.score(x, y) > 0.98
    assert (-model.decision_function(x) > 0).astype(int).tolist() != y.tolist()
    assert np.mean((-model.decision_function(x) > 0) == y) < 0.05


def test_halvings_keep_the_corrected_bound_and_scaling_breaks_the_printed_one():
    """slope = c mu (g - root), so that zeta = c mu-strongly monotone: both sides known. Scale the loss by c."""
    mu, root, low, high = 0.5, 0.3, -1.0, 2.0
    broken = 0
    for c in (1.0, 1e3):
        for halvings in range(1, 30):
            found = bisect(lambda g: c * (g - root), low, high, steps=halvings)  # noqa: B023
            square = (c * (found - root)) ** 2
            bound = convergence_bound("length", halvings, mu=mu, lipschitz=1.0, gap=0.0, zeta=c, width=high - low)
            assert square <= bound
            broken += square > length_bound_printed(halvings, mu=mu, zeta=c, width=high - low)
    assert broken > 0


def test_a_slope_that_underflows_to_zero_has_not_turned():
    assert lowest_length(lambda g: -np.exp(-abs(g)), lambda g: -g, convex=True) is None
