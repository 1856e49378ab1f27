"""The losses of a margin: derivatives against differences, bounds on the curvature, no overflow."""

import numpy as np
import pytest

from normscope.solve.losses import Sigmoid, Softplus, Unit

MARGINS = np.linspace(-6, 6, 241)
LOSSES = [
    Softplus(),
    Sigmoid(),
    Unit(Softplus(), np.linspace(-2, 2, 241), 0.7),
    Unit(Sigmoid(), np.linspace(-2, 2, 241), -1.3),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_derivatives_are_differences(loss):
    step = 1e-5
    first, second = loss.derivatives(MARGINS)
    np.testing.assert_array_equal(loss.first(MARGINS), first)
    difference = (loss.value(MARGINS + step) - loss.value(MARGINS - step)) / (2 * step)
    np.testing.assert_allclose(first, difference, atol=1e-9)
    difference = (loss.first(MARGINS + step) - loss.first(MARGINS - step)) / (2 * step)
    np.testing.assert_allclose(second, difference, atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_the_curvature_is_a_bound(loss):
    _, second = loss.derivatives(MARGINS)
    assert np.abs(second).max() <= loss.curvature * (1 + 1e-9)


@pytest.mark.parametrize("loss", [Softplus(), Sigmoid()])
def test_far_margins_do_not_overflow(loss):
    far = np.array([-1e4, -800.0, -40.0, 40.0, 800.0, 1e4])
    assert np.isfinite(loss.value(far)).all()
    assert np.isfinite(loss.derivatives(far)).all()
    assert loss.first(np.array([-700.0]))[0] > 0.0
    assert Softplus().value(np.array([40.0]))[0] == pytest.approx(40.0)
