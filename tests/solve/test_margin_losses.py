"""The losses of a margin: derivatives against differences, bounds on the curvature, no overflow."""

import numpy as np
import pytest
from scipy.special import expit, log_expit

from normscope.solve.margin_losses import HiddenUnitLoss, Sigmoid, Softplus

MARGINS = np.linspace(-6, 6, 241)
LOSSES = [
    Softplus(),
    Sigmoid(),
    HiddenUnitLoss(Softplus(), np.linspace(-2, 2, 241), 0.7),
    HiddenUnitLoss(Sigmoid(), np.linspace(-2, 2, 241), -1.3),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_derivatives_are_differences(loss):
    step = 1e-5
    _, first, second = loss.evaluate(MARGINS)
    above, below = loss.evaluate(MARGINS + step), loss.evaluate(MARGINS - step)
    np.testing.assert_allclose(first, (above[0] - below[0]) / (2 * step), atol=1e-9)
    np.testing.assert_allclose(second, (above[1] - below[1]) / (2 * step), atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_the_curvature_is_a_bound(loss):
    _, _, second = loss.evaluate(MARGINS)
    assert np.abs(second).max() <= loss.curvature * (1 + 1e-9)


def test_losses_and_derivatives_are_scipys_to_full_relative_precision():
    """Far margins too: nothing overflows, and 1 - s keeps its digits where s is 1."""
    margins = np.concatenate([MARGINS, [-1e4, -800.0, -700.0, -40.0, 40.0, 300.0]])
    s, rest = expit(margins), expit(-margins)
    value, first, second = Softplus().evaluate(margins)
    np.testing.assert_allclose(value, -log_expit(-margins), rtol=1e-14)
    np.testing.assert_allclose(first, s, rtol=1e-14)
    np.testing.assert_allclose(second, s * rest, rtol=1e-14)
    value, first, second = Sigmoid().evaluate(margins)
    np.testing.assert_allclose(value, s, rtol=1e-14)
    np.testing.assert_allclose(first, s * rest, rtol=1e-14)
    np.testing.assert_allclose(second, s * rest * (rest - s), rtol=1e-12, atol=1e-17)
    far = Softplus().evaluate(np.array([800.0, 1e4]))
    assert far[0].tolist() == [800.0, 1e4]
    assert far[1].tolist() == [1.0, 1.0]
    assert max(far[2]) < 1e-300
