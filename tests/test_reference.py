"""The slow twins against central differences, closed forms and quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest

import reference

# Central differences with step h have error h^2 |f'''| / 6 + 1e-16 |f| / h: about 1e-9 at h = 1e-5.
STEP, DIFFERENCE_ATOL = 1e-5, 1e-8
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}

SHAPES = [(5, 2), (3, 2, 4), (2, 3, 2, 2), (2, 2, 2, 1, 3)]


def central_difference(f, x: np.ndarray) -> np.ndarray:
    """Gradient of the scalar f at x, one coordinate at a time."""
    out = np.empty_like(x)
    for at in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[at] += STEP
        down[at] -= STEP
        out[at] = (f(up) - f(down)) / (2 * STEP)
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.3])
def test_six_formulas_are_the_gradient(shape, eps):
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=shape), rng.normal(size=shape)
    gamma, beta = rng.normal(size=shape[1]), rng.normal(size=shape[1])

    def loss(x, gamma, beta):
        return float((g * reference.batch_norm(x, gamma, beta, eps)[0]).sum())

    d_x, d_gamma, d_beta = reference.batch_norm_backward(x, gamma, eps, g)
    np.testing.assert_allclose(d_x, central_difference(lambda v: loss(v, gamma, beta), x), atol=DIFFERENCE_ATOL)
    np.testing.assert_allclose(d_gamma, central_difference(lambda v: loss(x, v, beta), gamma), atol=DIFFERENCE_ATOL)
    np.testing.assert_allclose(d_beta, central_difference(lambda v: loss(x, gamma, v), beta), atol=DIFFERENCE_ATOL)


@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm_is_numpys_standardisation(shape):
    rng = np.random.default_rng(1)
    x = rng.normal(3.0, 2.0, size=shape)
    gamma, beta = rng.normal(size=shape[1]), rng.normal(size=shape[1])
    y, mean, var = reference.batch_norm(x, gamma, beta, 0.1)
    axes = (0, *range(2, x.ndim))
    along = (slice(None), *[None] * (x.ndim - 2))
    np.testing.assert_allclose(mean, x.mean(axis=axes), **ROUNDING)
    np.testing.assert_allclose(var, x.var(axis=axes), **ROUNDING)
    wanted = gamma[along] * (x - mean[along]) / np.sqrt(var[along] + 0.1) + beta[along]
    np.testing.assert_allclose(y, wanted, **ROUNDING)


def test_gradient_is_orthogonal_to_one_and_to_the_output():
    # eps = 0: a shift or a scaling of the input changes nothing.
    rng = np.random.default_rng(2)
    x, g = rng.normal(size=(6, 3, 2)), rng.normal(size=(6, 3, 2))
    x_hat, _, _ = reference.batch_norm(x, np.ones(3), np.zeros(3), 0.0)
    d_x, _, _ = reference.batch_norm_backward(x, np.ones(3), 0.0, g)
    np.testing.assert_allclose(d_x.sum(axis=(0, 2)), 0.0, atol=1e-13)
    np.testing.assert_allclose((d_x * x_hat).sum(axis=(0, 2)), 0.0, atol=1e-13)


def test_running_average_closed_forms():
    mean, var = np.array([2.0, -1.0]), np.array([3.0, 6.0])
    # A constant observation c reaches c + (1 - momentum)^t (start - c); the unbiased variance is var 4/3.
    got_mean, got_var = reference.running_average([(mean, var, 4)] * 7, 0.3)
    np.testing.assert_allclose(got_mean, mean - 0.7**7 * mean, **ROUNDING)
    np.testing.assert_allclose(got_var, var * 4 / 3 + 0.7**7 * (1 - var * 4 / 3), **ROUNDING)
    history = [(np.array([float(t)]), np.array([t * 3.0]), 4) for t in (1, 2, 6)]
    got_mean, got_var = reference.running_average(history, None)
    np.testing.assert_allclose([got_mean[0], got_var[0]], [3.0, 12.0], **ROUNDING)


def test_population_statistics_equal_batches_follow_the_article():
    batches = list(np.random.default_rng(3).normal(size=(4, 3, 2, 5)))
    mean, var = reference.population_statistics(batches)
    m = 3 * 5
    np.testing.assert_allclose(mean, np.mean([b.mean(axis=(0, 2)) for b in batches], axis=0), **ROUNDING)
    biased = np.mean([b.var(axis=(0, 2)) for b in batches], axis=0)
    np.testing.assert_allclose(var, m / (m - 1) * biased, **ROUNDING)


def test_population_statistics_weigh_a_short_batch_by_its_size():
    rng = np.random.default_rng(4)
    batches = [rng.normal(size=(n, 1)) for n in (8, 8, 3)]
    mean, var = reference.population_statistics(batches)
    np.testing.assert_allclose(mean[0], np.concatenate(batches).mean(), **ROUNDING)
    squares = sum(((b - b.mean()) ** 2).sum() for b in batches)
    np.testing.assert_allclose(var[0], squares / (7 + 7 + 2), **ROUNDING)


@pytest.mark.parametrize("constants", [(0.5, 1.25, 0.1, 0.1), (1.0, 2.0, 0.3, 0.2), (0.2, 0.5, 0.0, 0.4)])
def test_noisy_moments_by_quadrature(constants):
    n_mu, n_sigma, r_mu, r_sigma = constants
    # Midpoint rule on a square; |u - v| has a kink on the diagonal, so the error is O(1/cells^2).
    cells = 2000
    t = (np.arange(cells) + 0.5) / cells
    mean = n_mu * (2 * t - 1)
    var = (1 + (n_sigma - 1) * t) ** 2 + r_sigma**2 + ((r_mu * (2 * t - 1)) ** 2).mean()
    mean_shift, var_shift = (np.abs(v[:, None] - v[None, :]) for v in (mean, var))
    moments = reference.noisy_moments(*constants)
    for name, values in {"mean_shift": mean_shift, "var_shift": var_shift, "var": var}.items():
        assert moments[name] == pytest.approx(values.mean(), rel=1e-6)
        assert moments[f"{name}_std"] == pytest.approx(values.std(), rel=1e-6)


def test_noisy_moments_by_simulation():
    # Independent of the algebra: draw Algorithm 1 itself. 5,000 units, two steps, 5 standard errors
    # (false alarm below 1e-5); m = 1000 values a unit shift the means by O(1/m), hence the 1 %.
    rng, units, m = np.random.default_rng(5), 5_000, 1000
    steps = []
    for _ in range(2):
        mu, sigma = rng.uniform(-0.5, 0.5, units), rng.uniform(1.0, 1.25, units)
        means, variances = np.empty(units), np.empty(units)
        for j in range(units):
            a = rng.normal(size=m)
            a = (a - a.mean()) / a.std()
            noisy = rng.normal(sigma[j], 0.1, m) * a + rng.uniform(mu[j] - 0.1, mu[j] + 0.1, m)
            means[j], variances[j] = noisy.mean(), noisy.var()
        steps.append((means, variances))
    (mean0, var0), (mean1, var1) = steps
    moments = reference.noisy_moments(0.5, 1.25, 0.1, 0.1)
    seen = {"mean_shift": np.abs(mean1 - mean0), "var_shift": np.abs(var1 - var0), "var": var0}
    for name, values in seen.items():
        error = 5 * moments[f"{name}_std"] / math.sqrt(units)
        assert values.mean() == pytest.approx(moments[name], abs=error + 0.01 * moments[name])


def test_noisy_batch_norm_adds_the_unit_and_the_element_draws():
    rng = np.random.default_rng(6)
    a, m_elem, s_elem = rng.normal(size=(3, 2, 4, 3, 2))
    mu, sigma = rng.normal(size=(2, 4))
    wanted = (sigma[:, None, None] + s_elem) * a + mu[:, None, None] + m_elem
    got = reference.noisy_batch_norm(a, mu, sigma, m_elem, s_elem)
    np.testing.assert_allclose(got, wanted, **ROUNDING)


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize(("p", "order"), [(1, 1), (2, 2), (math.inf, np.inf)])
def test_lp_norm_is_numpys_norm(p, order, centered):
    rng = np.random.default_rng(7)
    x = rng.normal(1.0, 2.0, size=(5, 2, 3))
    gamma, beta = rng.normal(size=2), rng.normal(size=2)
    y, mean, norm = reference.lp_norm(x, gamma, beta, 0.25, p, centered=centered)
    for k in range(2):
        flat = x[:, k].ravel()
        size = np.linalg.norm(flat - flat.mean() if centered else flat, order)
        size /= {1: 15, 2: math.sqrt(15)}.get(p, 1)
        np.testing.assert_allclose([mean[k], norm[k]], [flat.mean(), size], **ROUNDING)
        wanted = gamma[k] * (x[:, k] - flat.mean()) / (size + 0.25) + beta[k]
        np.testing.assert_allclose(y[:, k], wanted, **ROUNDING)


def test_lp_norm_centred_two_is_batch_norm_without_eps():
    x = np.random.default_rng(8).normal(size=(6, 3))
    y, _, _ = reference.lp_norm(x, np.ones(3), np.zeros(3), 0.0, 2, centered=True)
    np.testing.assert_allclose(y, reference.batch_norm(x, np.ones(3), np.zeros(3), 0.0)[0], **ROUNDING)


def test_lp_norm_refuses_another_p():
    with pytest.raises(ValueError, match="1, 2 or inf"):
        reference.lp_norm(np.ones((2, 1)), np.ones(1), np.zeros(1), 0.0, 3, centered=False)


def test_deep_linear_loss_in_matrices():
    rng = np.random.default_rng(9)
    # Rectangular layers: a product in the wrong order does not even multiply.
    first, second, third = rng.normal(size=(4, 3)), rng.normal(size=(5, 4)), rng.normal(size=(2, 5))
    x, a = rng.normal(size=(7, 3)), rng.normal(size=(2, 3))
    wanted = 0.5 * np.linalg.norm((third @ second @ first - a) @ x.T) ** 2
    assert reference.deep_linear_loss([first, second, third], x, a) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_heavy_ball_on_a_parabola_follows_its_characteristic_roots(momentum):
    # theta_{t+1} = (1 + momentum - lr h) theta_t - momentum theta_{t-1} for the gradient h theta.
    h, lr, steps = 3.0, 0.1, 12
    roots = np.roots([1.0, -(1 + momentum - lr * h), momentum]).astype(complex)
    # theta_0 = 1 and theta_1 = 1 - lr h fix the two amplitudes.
    amplitudes = np.linalg.solve(np.stack([roots**0, roots]), np.array([1.0, 1 - lr * h]))
    wanted = [(amplitudes * roots**t).sum().real for t in range(steps + 1)]
    path = reference.heavy_ball(lambda theta: h * theta, np.array([1.0]), lr, momentum, steps)
    assert path.shape == (steps + 1, 1)
    np.testing.assert_allclose(path[:, 0], wanted, **ROUNDING)
