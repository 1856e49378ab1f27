"""The formulas of the theorems against differentiation, and the counterexamples to the printed ones."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope.theory import inequalities as theory

TOLERANCE = 1e-10
LOSSES = {
    "cubic": lambda z, a: (a * z**3).sum() + (z[:-1] * z[1:] ** 2).sum(),
    "softplus": lambda z, a: torch.nn.functional.softplus(a * z.sum() + z).sum(),
    "quadratic": lambda z, a: 0.5 * (a.sum() * z.sum() ** 2 + (a * z).square().sum()),
    "linear": lambda z, a: (a * z).sum(),
    "log sum exp": lambda z, a: torch.logsumexp(a * z, 0),
}


def _draw(m, loss, gamma, seed, eps=0.0):
    """A unit with g, H, d, Hh and dz/dy, all by differentiation in float64."""
    rng = torch.Generator().manual_seed(seed)
    y, a = (torch.randn(m, generator=rng, dtype=torch.float64) for _ in range(2))
    y = 0.3 + 1.7 * y
    beta = 0.2

    def normalize(y):
        return gamma * (y - y.mean()) / (y.var(correction=0) + eps).sqrt() + beta

    def f(z):
        return LOSSES[loss](z, a)

    s = float((y.var(correction=0) + eps).sqrt())
    z = normalize(y)
    g, d = torch.func.grad(f)(z), torch.func.grad(lambda y: f(normalize(y)))(y)
    h = torch.autograd.functional.hessian(f, z)
    h_hat = torch.autograd.functional.hessian(lambda y: f(normalize(y)), y)
    jacobian = torch.autograd.functional.jacobian(normalize, y)
    y_hat = ((y - y.mean()) / s).numpy()
    unit = theory.Unit(g.numpy(), y_hat, s, gamma)
    return unit, h.numpy(), d.numpy(), h_hat.numpy(), jacobian.numpy()


def _close(left, right, scale):
    assert np.abs(np.asarray(left) - np.asarray(right)).max() <= TOLERANCE * max(scale, 1e-12)


drawn = given(
    m=st.integers(3, 24),
    loss=st.sampled_from(sorted(LOSSES)),
    gamma=st.floats(0.05, 5) | st.floats(-3, -0.1),
    seed=st.integers(0, 10**6),
)


@drawn
@settings(deadline=None, derandomize=True, max_examples=100)
def test_equalities(m, loss, gamma, seed):
    unit, h, d, h_hat, jacobian = _draw(m, loss, gamma, seed)
    gain, size = unit.gain, float(np.abs(unit.g).max() * abs(gamma) / unit.s)
    _close(d, theory.gradient(unit), size)
    _close(jacobian, theory.jacobian(unit), abs(gamma) / unit.s)
    _close(d @ d, theory.squared_gradient(unit), gain * unit.g @ unit.g)
    scale = np.abs(gain * h).max() + abs(gamma) / unit.s**2 * np.abs(unit.g).max()
    _close(h_hat, theory.hessian(unit, h), scale)
    right = gain * d @ h @ d - theory.separation(unit, d @ d)
    _close(d @ h_hat @ d, right, m * scale * d @ d)
    if d @ h @ d <= unit.g @ h @ unit.g:
        second = gain * unit.g @ h @ unit.g - theory.separation(unit, d @ d)
        assert d @ h_hat @ d <= second + TOLERANCE * m * scale * max(d @ d, unit.g @ unit.g)
    lam = 1.7
    _close(lam**2 * d @ d, theory.largest_weight_gradient(unit, lam), lam**2 * gain * unit.g @ unit.g)


@drawn
@settings(deadline=None, derandomize=True, max_examples=60)
def test_with_eps(m, loss, gamma, seed):
    """S-BN-2: facts and Hessian as they stand, Theorem 4.1 with 2 - |yh|^2/m; P is no projector then."""
    unit, h, d, h_hat, jacobian = _draw(m, loss, gamma, seed, eps=0.5)
    scale = np.abs(unit.gain * h).max() + abs(gamma) / unit.s**2 * np.abs(unit.g).max()
    _close(d, theory.gradient(unit), np.abs(unit.g).max() * abs(gamma) / unit.s)
    _close(jacobian, theory.jacobian(unit), abs(gamma) / unit.s)
    _close(h_hat, theory.hessian(unit, h), scale)
    _close(d @ d, theory.squared_gradient(unit), unit.gain * unit.g @ unit.g)
    assert unit.y_hat @ unit.y_hat < m
    p = theory.jacobian(unit) * unit.s / gamma
    assert np.abs(p @ p - p).max() > 1e-6


def test_gradient_is_orthogonal_to_the_normalized_output():
    """E-BN-2: <grad_y, yh> = 0 always, so a bound cannot become tighter as they correlate; <g, yh> is what it needs."""
    for seed in range(20):
        unit, _, d, _, _ = _draw(12, "cubic", 1.3, seed)
        assert abs(d @ unit.y_hat) < 1e-9 * np.linalg.norm(d) * np.sqrt(12)
        assert abs(d.sum()) < 1e-9 * np.linalg.norm(d) * np.sqrt(12)
        assert abs(unit.g @ unit.y_hat) > 1e-3


def test_normalized_output_has_standard_deviation_one():
    """E-BN-1: "the standard deviation of yhat" is 1; sigma_j is that of y."""
    unit, *_ = _draw(50, "linear", 1.0, 0)
    assert unit.y_hat.std() == pytest.approx(1, rel=1e-12)
    assert unit.s == pytest.approx(1.7, rel=0.2)


def test_printed_theorem_4_1_fails_on_every_draw():
    """E-THM-1: 1/sqrt(m) in the place of 1/m. The right side is below the left, and below zero on some draws."""
    rng, rights = np.random.default_rng(0), []
    for _ in range(2000):
        m = int(rng.integers(3, 64))
        y, g = rng.standard_normal((2, m))
        unit = theory.Unit(g, (y - y.mean()) / y.std(), float(y.std()), 1.0)
        d = theory.gradient(unit)
        rights.append(theory.squared_gradient(unit, printed=True))
        assert d @ d > rights[-1]
        assert d @ d == pytest.approx(theory.squared_gradient(unit), rel=1e-9)
    assert min(rights) < 0


def test_printed_hessian_is_off():
    """E-THM-2: (42) of the second version of the supplement, without the bar on its first g."""
    off = []
    for seed in range(50):
        unit, h, _, h_hat, _ = _draw(10, "softplus", 0.8, seed)
        off.append(np.abs(h_hat - theory.hessian(unit, h, printed=True)).max() / np.abs(h_hat).max())
    assert min(off) > 1e-3


def test_second_part_of_theorem_4_2_needs_its_condition():
    """E-THM-3: for random positive H it fails without d^T H d <= g^T H g: often if gamma > s, seldom if gamma <= s."""
    failed, unmet = {"above": 0, "below": 0}, 0
    rng = np.random.default_rng(0)
    counts = {"above": 0, "below": 0}
    for _ in range(1000):
        m = 8
        y, g, root = rng.standard_normal(m), rng.standard_normal(m), rng.standard_normal((m, 3))
        h, s, gamma = root @ root.T, y.std(), rng.uniform(0.1, 2)
        unit = theory.Unit(g, (y - y.mean()) / s, float(s), float(gamma))
        d = theory.gradient(unit)
        left = d @ theory.hessian(unit, h) @ d
        right = unit.gain * g @ h @ g - theory.separation(unit, d @ d)
        side = "above" if gamma > s else "below"
        counts[side] += 1
        met = d @ h @ d <= g @ h @ g
        unmet += not met
        fails = left > right + 1e-9 * abs(right)
        failed[side] += fails
        assert not (fails and met)
    assert unmet > 100
    assert failed["above"] > 0.3 * counts["above"]
    assert 0 < failed["below"] < 0.2 * counts["below"]


def test_printed_theorem_4_4_has_the_wrong_units():
    """E-THM-4: a squared norm is squared again, so that scaling the loss by c scales left by c^2 and right by c^4."""
    unit, _, d, _, _ = _draw(12, "cubic", 1.0, 3)
    lam, small = 1.5, 1e-2
    scaled = theory.Unit(small * unit.g, unit.y_hat, unit.s, unit.gamma)
    assert theory.largest_weight_gradient(scaled, lam) == pytest.approx(
        small**2 * theory.largest_weight_gradient(unit, lam)
    )
    # Small losses make the printed bound false, large ones make it empty.
    assert small**2 * lam**2 * d @ d > theory.largest_weight_gradient(scaled, lam, printed=True)
    assert lam**2 * d @ d < 0.1 * theory.largest_weight_gradient(unit, lam, printed=True)


def test_theorem_4_4_is_attained_by_a_rank_one_input():
    unit, _, d, _, _ = _draw(12, "cubic", 1.0, 3)
    lam, v = 1.5, np.array([0.6, 0.8])
    x = lam * np.outer(d, v) / np.linalg.norm(d)
    assert np.linalg.norm(x, 2) == pytest.approx(lam)
    assert np.sum((x.T @ d) ** 2) == pytest.approx(theory.largest_weight_gradient(unit, lam))


def test_counterexample_to_equation_58():
    """E-THM-5: lam = 1, d = e1, Hh = e2 e2^T: (58) says 0; X = (e1 + e2)(e1 + e2)^T / 2 attains 1/4."""
    d, h_hat = np.array([1.0, 0.0]), np.diag([0.0, 1.0])
    x = np.full((2, 2), 0.5)
    assert np.linalg.norm(x, 2) == pytest.approx(1)
    u = x @ x.T @ d
    assert u @ h_hat @ u == pytest.approx(0.25)
    assert d @ h_hat @ d == 0
    assert theory.largest_curvature(h_hat, d) == pytest.approx(0.25)


@given(m=st.integers(2, 6), seed=st.integers(0, 10**6), shift=st.sampled_from([-2.0, 0.0, 2.0]))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_largest_curvature_is_never_exceeded_and_nearly_reached(m, seed, shift):
    rng = np.random.default_rng(seed)
    a, d = rng.standard_normal((m, m)), rng.standard_normal(m)
    h = (a + a.T) / 2 + shift * np.eye(m)
    best = theory.largest_curvature(h, d)
    w = rng.standard_normal((20_000, m))
    w /= np.linalg.norm(w, axis=1, keepdims=True)
    u = (d + np.linalg.norm(d) * w) / 2
    values = np.einsum("ij,jk,ik->i", u, h, u)
    size = np.abs(np.linalg.eigvalsh(h)).max() * d @ d
    assert values.max() <= best + 1e-9 * size
    assert best <= max(values.max(), 0.0) + 0.15 * size
    # u = A d with 0 <= A <= I for every point of the ball: A = uu^T/<u,d>, whose norm is |u|^2/<u,d> = 1 on its edge.
    i = int(values.argmax())
    assert u[i] @ u[i] == pytest.approx(u[i] @ d)


def test_largest_curvature_where_the_top_direction_has_no_share():
    h, d = np.diag([1.0, 3.0]), np.array([2.0, 0.0])
    angles = np.linspace(0, 2 * np.pi, 100_001)
    u = d / 2 + np.stack([np.cos(angles), np.sin(angles)], 1)
    assert theory.largest_curvature(h, d) == pytest.approx(np.einsum("ij,jk,ik->i", u, h, u).max(), rel=1e-8)
    assert theory.largest_curvature(-h, d) == 0.0
    assert theory.largest_curvature(h, np.zeros(2)) == 0.0


@pytest.mark.parametrize("share", [0.0, 1e-300, 1e-16, 2e-13, 1e-12, 1e-9, 1e-6])
@pytest.mark.parametrize("scale", [1.0, 1e-310, 1e200])
def test_largest_curvature_near_the_hard_case(share, scale):
    """h = diag(1, 3), d = (2, share): 9/2 + 3 sqrt(3)/2 share + O(share^2), the slope at share = 0 along the edge."""
    found = theory.largest_curvature(scale * np.diag([1.0, 3.0]), np.array([2.0, share]))
    assert found == pytest.approx(scale * (4.5 + 1.5 * np.sqrt(3) * share), rel=1e-11)


@given(seed=st.integers(0, 10**6))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_lemma_4_5(seed):
    """An equality for k W*, a bound for the nearest optimum: a k of its own for every row comes nearer still."""
    rng = np.random.default_rng(seed)
    w0, w_star = rng.standard_normal((2, 4, 5))
    w0 += 0.5 * w_star
    k, left, right = theory.nearest_optimum(w0, w_star)
    assert left == pytest.approx(right, rel=1e-10)
    assert left == pytest.approx(np.sum((w0 - w_star) ** 2) - np.sum(w_star**2) * (1 - k) ** 2, rel=1e-9)
    by_row = sum(theory.nearest_optimum(a, b)[1] for a, b in zip(w0, w_star, strict=True))
    assert by_row <= left + 1e-12
