"""The rate of gradient explosion: closed forms, quadrature, limits, and a real stack."""

import importlib.util
import json
from math import acos, asin, exp, gamma, inf, lgamma, log, pi, sqrt
from pathlib import Path

import numpy as np
import pytest

from normscope.theory import printed
from normscope.theory.explosion import ACTIVATIONS, ActivationWithSlope, explosion, rate
from normscope.theory.sphere import rule

ROOT = Path(__file__).parents[2]
SIZES = (6, 16, 64, 256, 1024)


def _example():
    spec = importlib.util.spec_from_file_location("gradient_explosion", ROOT / "examples/gradient_explosion.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _theorem_8(size):
    """Yang et al., Theorem 8 for ReLU, written out from the paper."""
    c = -1 / (size - 1)
    j = (sqrt(1 - c**2) + (pi - acos(c)) * c) / pi
    return ((pi - acos(c)) / pi + size - 1) / ((size - 3) * (1 - j)) - 1 / (size - 3)


@pytest.mark.parametrize("size", [4, 5, 6, 16, 1024, 10**6])
def test_closed_forms(size):
    assert rate("relu", size) == pytest.approx(_theorem_8(size), rel=1e-12)
    assert rate("linear", size) == pytest.approx((size - 2) / (size - 3), rel=1e-12)


def test_limits():
    assert rate("relu") == pytest.approx(pi / (pi - 1), rel=1e-14)
    assert rate("relu", 10**9) == pytest.approx(pi / (pi - 1), rel=1e-8)
    assert rate("linear") == 1.0
    assert explosion("linear").trainable_depth == inf


@pytest.mark.parametrize("phi", ["relu", "linear", "tanh", "erf"])
def test_rate_falls_with_the_batch_size_and_is_never_below_the_linear_one(phi):
    rates = [rate(phi, size) for size in (4, 5, 6, 8, 16, 32, 64, 256, 1024, inf)]
    assert all(np.diff(rates) < 0)
    assert all(rate(phi, size) >= rate("linear", size) - 1e-12 for size in (4, 5, 6, 16, 256, inf))


@pytest.mark.parametrize(("size", "tolerance"), [(4, 5e-5), (6, 1e-7), (16, 1e-12), (256, 1e-12), (inf, 1e-13)])
def test_quadrature_gives_the_closed_forms(size, tolerance):
    """As functions of the user they go by quadrature; four samples, whose density ends with a jump, are hardest."""
    for name in ("relu", "linear"):
        found = explosion(ACTIVATIONS[name], size)
        assert found.method == "quadrature"
        assert found.rate == pytest.approx(rate(name, size), rel=tolerance)
        assert abs(found.rate - rate(name, size)) <= found.error + 1e-12


def test_erf_has_a_closed_form_at_infinite_batch():
    """E erf(x)^2 = 2/pi asin(2/3), E erf'^2 = 4/(pi sqrt 5) for a standard normal x; erf is odd, so E erf = 0."""
    assert rate("erf") == pytest.approx(4 / (pi * sqrt(5)) / (2 / pi * np.arcsin(2 / 3)), rel=1e-12)


def _steep(size, sharpness):
    """The rate of f = +-1 with a step whose slope has E d^2 = sharpness p(0), p the density of x1.

    p(0) = Gamma(n/2) / (sqrt(n pi) Gamma((n-1)/2)), n = B - 1; E f1 f2 = 2/pi asin(c). What is left is of order 1.
    """
    if size == inf:
        return sharpness / sqrt(2 * pi)
    n = size - 1
    density = exp(lgamma(n / 2) - lgamma((n - 1) / 2)) / sqrt(n * pi)
    return n * sharpness * density / ((n - 2) * (1 + 2 / pi * asin(1 / n)))


@pytest.mark.parametrize("size", [8, 64, 256, inf])
@pytest.mark.parametrize("scale", [100.0, -1000.0, 1e5])
def test_steep_activations(size, scale):
    """Int tanh'^2 = 4/3, int erf'^2 = sqrt(8/pi): a narrow place that a coarse rule steps over."""
    for phi, integral in (("tanh", 4 / 3), ("erf", sqrt(8 / pi))):
        found = explosion(phi, size, gamma=scale)
        assert found.rate == pytest.approx(_steep(size, integral * abs(scale)), rel=2 / abs(scale))
        assert found.error < 1e-6 * found.rate


def test_quadrature_that_does_not_converge_is_refused():
    kinked = ActivationWithSlope(lambda z: np.maximum(z - 0.37, 0.0), lambda z: np.where(z > 0.37, 1.0, 0.0))
    narrow = ActivationWithSlope(np.tanh, lambda z: 1 - np.tanh(z) ** 2)
    for size in (4, 16, inf):
        with pytest.raises(ValueError, match="Name the points where phi jumps or turns fast as its kinks"):
            explosion(kinked, size)
        with pytest.raises(ValueError, match=r"Quadrature does not find the rate for gamma = 1000000.0"):
            explosion(narrow, size, gamma=1e6)
    named = ActivationWithSlope(kinked.phi, kinked.slope, (0.37,))
    assert explosion(named, inf).rate == pytest.approx(explosion("relu", beta=-0.37).rate, rel=1e-12)


def test_large_beta_keeps_the_digits():
    assert explosion("linear", 64, beta=1e9).rate == pytest.approx(62 / 61, rel=1e-12)
    assert explosion("relu", 64, beta=1e7).rate == pytest.approx(62 / 61, rel=1e-7)
    assert explosion("relu", 64).factor(100_000) == inf


def test_moments_against_draws():
    """tanh with a shift, 8 samples, 200,000 batches; 4 standard errors: one false alarm in 16,000."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((200_000, 8))
    z -= z.mean(1, keepdims=True)
    x = z / z.std(1, keepdims=True)
    f, d = np.tanh(1.3 * x + 0.4), 1.3 / np.cosh(1.3 * x + 0.4) ** 2
    numerator = 7 * d[:, 0] ** 2 - (x * d)[:, 0] ** 2 + d[:, 0] * d[:, 1] + (x * d)[:, 0] * (x * d)[:, 1]
    denominator = 5 * (f[:, 0] ** 2 - f[:, 0] * f[:, 1])
    found = explosion("tanh", 8, gamma=1.3, beta=0.4)
    residual = numerator - found.rate * denominator
    assert abs(residual.mean()) < 4 * residual.std() / sqrt(len(residual))
    assert found.error < 1e-12


def test_fixed_point_of_relu():
    """Yang et al., Theorem 5: the Gamma functions of the printed form come to 1/2 for every batch size."""
    for size in (5, 16, 256):
        found = explosion("relu", size)
        printed_form = (size - 1) * gamma(1.5) * gamma((size - 1) / 2) / (2 * sqrt(pi) * gamma((size + 1) / 2))
        assert found.q == pytest.approx(printed_form) == pytest.approx(0.5)
        c = -1 / (size - 1)
        assert found.correlation == pytest.approx((sqrt(1 - c**2) + (pi - acos(c)) * c) / pi)


def test_depths_and_factors():
    found = explosion("relu", 1024)
    assert found.norm_rate == pytest.approx(sqrt(found.rate))
    assert found.xi == pytest.approx(1 / log(found.rate))
    assert found.trainable_depth == pytest.approx(16 * found.xi) == pytest.approx(42, abs=0.5)
    assert found.factor(3) == pytest.approx(found.rate**3)
    assert found.factor(round(found.trainable_depth)) == pytest.approx(exp(16), rel=0.4)
    assert json.loads(json.dumps(explosion("linear").plain(), allow_nan=False))["xi"] == "inf"


def test_one_theory_two_papers():
    """The mean-field recursion with the variance in the place of q grows by the explosion rate (E-MF-6, S-GE-5)."""
    found = printed.dense((784, *[1000] * 5, 10), gamma=0.7)
    variances = [q - q_xy for q, q_xy in zip(found.q, found.q_xy, strict=True)]
    assert [0.7**2 * 2 / 2 / s2 for s2 in variances[1:]] == pytest.approx([rate("relu")] * 5, rel=1e-12)


def test_remedies_in_the_closed_form():
    assert [round(explosion("tanh", 256, gamma=g).rate, 3) for g in (1, 0.5, 0.1)] == [1.181, 1.037, 1.004]
    assert [round(explosion("relu", 256, beta=b).rate, 3) for b in (0, 1, 3)] == [1.473, 1.124, 1.005]
    assert explosion("relu", 256, gamma=5.0).rate == pytest.approx(rate("relu", 256))


def test_sphere_rule_has_the_moments_of_the_sphere():
    for n in (2, 3, 10, 1000, inf):
        x, w = rule(n, np.array([[0.3], [99.0]]), 8)
        fourth = 3.0 if n == inf else 3 * n / (n + 2)
        for row in range(2):
            assert w[row].sum() == pytest.approx(1)
            assert w[row] @ x[row] == pytest.approx(0, abs=1e-13)
            assert w[row] @ x[row] ** 2 == pytest.approx(1, rel=1e-11)
            assert w[row] @ x[row] ** 4 == pytest.approx(fourth, rel=1e-11)


@pytest.mark.parametrize("size", [3, 2, 0, -5, 7.5, float("nan"), -inf, "64", None])
def test_bad_batch_size(size):
    with pytest.raises(ValueError, match="whole number above 3, or inf; got"):
        explosion("relu", size)


def test_bad_input():
    with pytest.raises(ValueError, match="Did you mean 'tanh'"):
        explosion("tanhh", 64)
    with pytest.raises(ValueError, match="constant over the batch for gamma = 0.0"):
        explosion("relu", 64, gamma=0.0)
    with pytest.raises(ValueError, match="constant over the batch"):
        explosion("relu", 64, beta=-20.0)
    with pytest.raises(ValueError, match="constant over the batch"):
        explosion(ActivationWithSlope(np.ones_like, np.zeros_like), 64)
    with pytest.raises(ValueError, match="gamma and beta are finite"):
        explosion("tanh", 64, gamma=inf)
    with pytest.raises(ValueError, match="gamma and beta are finite .* got gamma = 'large'"):
        explosion("tanh", 64, gamma="large")
    with pytest.raises(ValueError, match="a size between 1e-60 and 1e60"):
        explosion("linear", 64, gamma=1e-200)


@pytest.mark.parametrize("size", [8, 16, 64])
def test_a_stack_grows_as_the_closed_form_says(size):
    """Width 400, mean of three seeds; 3 %: finite width takes 1 to 2 % off (see the stored table)."""
    growth = _example().growth
    measured = np.mean([growth("relu", size, depth=30, width=400, seed=seed).weights for seed in range(3)])
    assert measured == pytest.approx(rate("relu", size), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_fifty_layers_grow_within_two_percent_of_the_closed_form(size):
    """E-GE-1: it is the squared norm that grows by this; its root would be off by a fifth."""
    growth = _example().growth
    measured = np.mean([growth("relu", size, depth=50, width=1000, seed=seed).weights for seed in range(2)])
    assert measured == pytest.approx(rate("relu", size), rel=0.02)
    if size == max(SIZES):
        assert measured == pytest.approx(pi / (pi - 1), rel=0.02)


def test_stored_table():
    """The numbers that the docs quote: within 2 % at width 1000, and the error falls as the width grows."""
    stored = json.loads((ROOT / "results/gradient-explosion.json").read_text())
    relu = {row["settings"]["batch_size"]: row for row in stored["rates"] if row["settings"]["phi"] == "relu"}
    assert tuple(relu) == SIZES
    for size, row in relu.items():
        assert row["theory"] == pytest.approx(rate("relu", size), rel=1e-12)
        assert row["measured"] == pytest.approx(row["theory"], rel=0.02)
    assert relu[1024]["measured"] == pytest.approx(pi / (pi - 1), rel=0.02)
    errors = [1 - row["ratio"] for row in stored["widths"]]
    assert errors[0] > errors[1] > errors[2] > 0
    remedies = {row["name"]: row["measured"] for row in stored["remedies"]}
    unhelpful = {"none", "relu, eps 0.1", "relu, eps 1"}
    assert all(value < 0.9 * remedies["none"] for name, value in remedies.items() if name not in unhelpful)


def test_errata_say_how_fast_gradients_grow():
    stored = json.loads((ROOT / "results/gradient-explosion.json").read_text())
    relu = [row for row in stored["rates"] if row["settings"]["phi"] == "relu"]
    page = (ROOT / "docs/evidence/errata.md").read_text()
    assert "| closed form | " + " | ".join(f"{row['theory']:.3f}" for row in relu) + f" | {rate('relu'):.3f} |" in page
    assert "| measured | " + " | ".join(f"{row['measured']:.3f}" for row in relu) + " | |" in page


def test_errata_say_what_is_stored():
    stored = json.loads((ROOT / "results/gradient-explosion.json").read_text())
    page = (ROOT / "docs/evidence/errata.md").read_text()
    for row in stored["remedies"]:
        theory = f"{row['theory']:.3f}" if "theory" in row else ""
        assert f"| {row['name']} | {row['measured']:.3f} | {row['activations']:.3f} | {theory} |" in page
    # sw2 = 1, eps = 1: the variance dies out, and E d^2 / (v + eps) is left.
    (large,) = (row for row in stored["remedies"] if row["name"] == "relu, eps 1")
    assert large["activations"] == pytest.approx(1 / 2, rel=0.01)
