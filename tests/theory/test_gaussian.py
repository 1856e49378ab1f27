"""Gaussian expectations against closed forms and against two-dimensional quadrature."""

import math

import numpy as np
import pytest
import torch

from normscope.theory.gaussian import ERF, LINEAR, RELU, Activation, Pairs, _series

Q = torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64)


def ends(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return v[..., :, None], v[..., None, :]


def pairs(c: float, mean: float = 0.0) -> Pairs:
    """Three places with correlation c between different ones."""
    root = Q.sqrt()
    correlation = torch.full((3, 3), c, dtype=torch.float64).fill_diagonal_(1.0)
    return Pairs(root[:, None] * root[None, :] * correlation, Q, torch.full_like(Q, mean), ends)


def direct(function, p: Pairs, i: int, j: int) -> float:
    """E[f(u) f(v)] by a product of two fine one-dimensional rules, written from the definition."""
    z = np.linspace(-9, 9, 901)
    w = np.exp(-(z**2) / 2)
    w /= w.sum()
    k, a, b = float(p.k[i, j]), float(Q[i]), float(Q[j])
    u = math.sqrt(a) * z[:, None]
    v = k / math.sqrt(a) * z[:, None] + math.sqrt(max(b - k * k / a, 0.0)) * z[None, :]
    mean = float(p.mean[0])
    return float(w @ (function(mean + u) * function(mean + v)) @ w)


@pytest.mark.parametrize("c", [-0.6, 0.0, 0.4, 0.95])
@pytest.mark.parametrize("mean", [0.0, 0.7])
@pytest.mark.parametrize("name", ["tanh", "relu", "sigmoid", "gelu"])
def test_every_function_agrees_with_quadrature_in_two_dimensions(name, mean, c):
    functions = {
        "tanh": (Activation("tanh", torch.tanh), np.tanh, 1e-7),
        "relu": (RELU, lambda z: np.maximum(z, 0), 1e-4),
        "sigmoid": (Activation("sigmoid", torch.sigmoid), lambda z: 1 / (1 + np.exp(-z)), 1e-7),
        "gelu": (
            Activation("gelu", lambda z: torch.nn.functional.gelu(z, approximate="tanh")),
            lambda z: 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
            1e-5,
        ),
    }
    ours, theirs, tolerance = functions[name]
    p = pairs(c, mean)
    found = ours.moments(p)
    for i, j in ((0, 1), (1, 2), (2, 2)):
        assert float(found.value[i, j]) == pytest.approx(direct(theirs, p, i, j), abs=tolerance, rel=tolerance)


def test_relu_closed_form_is_its_series_to_the_kinks_error():
    p = pairs(0.5)
    closed, series = RELU.moments(p), _series(p, torch.relu)
    torch.testing.assert_close(closed.value, series.value, rtol=2e-4, atol=1e-6)
    torch.testing.assert_close(closed.slope, series.slope, rtol=3e-3, atol=1e-6)
    torch.testing.assert_close(closed.mean, series.mean, rtol=1e-4, atol=0)
    torch.testing.assert_close(closed.bend, series.bend, rtol=1e-3, atol=0)


def test_erf_closed_form_is_its_series():
    p = pairs(0.5)
    closed, series = ERF.moments(p), _series(p, torch.erf)
    torch.testing.assert_close(closed.value, series.value, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(closed.slope, series.slope, rtol=1e-3, atol=1e-6)


def test_leaky_relu_is_a_line_and_a_relu():
    leaky = Activation("leaky", lambda z: torch.nn.functional.leaky_relu(z, 0.2), line=(0.2, 0.8))
    p = pairs(0.3)
    closed, series = leaky.moments(p), _series(p, leaky.function)
    torch.testing.assert_close(closed.value, series.value, rtol=2e-4, atol=1e-6)
    torch.testing.assert_close(closed.slope, series.slope, rtol=3e-3, atol=1e-6)


@pytest.mark.parametrize("phi", [Activation("tanh", torch.tanh), RELU, ERF], ids=lambda phi: phi.name)
def test_slope_and_curve_are_derivatives_by_the_covariance(phi):
    """d E[phi phi] / dk = E[phi' phi'], and again for the slope: what the data modes are read from."""
    p, step = pairs(0.4), 1e-4
    found = phi.moments(p)
    moved = [p.k.clone(), p.k.clone()]
    moved[0][0, 1] += step
    moved[1][0, 1] -= step
    high, low = (phi.moments(Pairs(x, p.q, p.mean, ends)) for x in moved)
    assert float(found.slope[0, 1]) == pytest.approx(float(high.value[0, 1] - low.value[0, 1]) / (2 * step), rel=1e-4)
    assert float(found.curve[0, 1]) == pytest.approx(float(high.slope[0, 1] - low.slope[0, 1]) / (2 * step), rel=1e-4)


def test_linear_keeps_second_moments_with_a_mean():
    found = LINEAR.moments(pairs(0.5, mean=2.0))
    assert float(found.value[1, 1]) == pytest.approx(1.0 + 4.0)


def test_zero_variance_passes_what_is_at_zero():
    zero = torch.zeros(1, 1, dtype=torch.float64)
    p = Pairs(zero, zero[0], zero[0], ends)
    assert float(RELU.moments(p).value) == pytest.approx(0.0, abs=1e-100)
    assert float(RELU.moments(p).slope) == 0.0
    assert float(Activation("tanh", torch.tanh).moments(p).slope) == pytest.approx(1.0)
