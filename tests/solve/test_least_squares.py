"""Least squares: the theorem's bound, the Rayleigh quotient's iterates, scikit-learn's solutions."""

import numpy as np
import pytest
from problems import cosine, data_with, second_moment
from scipy.linalg import eigh, hadamard
from sklearn.linear_model import LinearRegression, Ridge

import reference
from normscope.solve import Design, GDNPRegressor, LeastSquares, convergence_bound, gdnp, identities
from normscope.solve.baselines import gradient_descent
from normscope.solve.rates import rayleigh_rate
from normscope.solve.second_moment import SecondMomentSpectrum

# In units of |rho*|: sums of up to 400 products of numbers of that size round to about this.
FLOOR = 1e-13


def random_problem(seed, condition=None):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 30))
    condition = 10 ** rng.uniform(0, 6) if condition is None else condition
    x = data_with(second_moment(d, condition, rng), 400, rng)
    y = x @ np.linalg.cholesky(np.linalg.inv(x.T @ x / 400)) @ rng.standard_normal(d) + rng.standard_normal(400)
    return LeastSquares(Design(x), y), rng.standard_normal(d), x, y


def test_the_bound_holds_on_200_random_problems():
    slacks, conditions = [], []
    for seed in range(200):
        problem, start, _, _ = random_problem(seed)
        history = gdnp(problem, start, max_iter=100, tol=0.0, safeguard=False).history
        slacks.append(history["slack"].min() / abs(problem.best_rho))
        conditions.append(problem.spectrum.largest / problem.spectrum.smallest)
        assert (np.diff(history["rho"]) <= FLOOR * abs(problem.best_rho)).all()
    assert min(conditions) < 1.2
    assert max(conditions) > 8e5
    assert min(slacks) >= -FLOOR, min(slacks)


def test_the_bound_is_nearly_taken_in_the_worst_direction():
    """With v_0 - S^-1 u along the lowest eigenvector, v changes by (1 - mu/L) a step: the bound is not loose."""
    s = np.diag([1.0, 0.1])
    x = data_with(s, 400, np.random.default_rng(0))
    problem = LeastSquares(Design(x), x @ np.array([1.0, 1e-3]))
    history = gdnp(problem, np.array([1.0, 1e-2]), max_iter=20, tol=0.0, safeguard=False).history
    assert (history["gap"] / history["bound"]).max() > 0.9
    np.testing.assert_allclose(
        history["bound"],
        convergence_bound("least_squares", np.arange(21), mu=0.1, lipschitz=1.0, gap=history["gap"][0]),
        rtol=1e-10,
    )


@pytest.mark.parametrize("seed", range(10))
def test_directions_are_those_of_rayleigh_descent(seed):
    problem, start, x, y = random_problem(seed)
    path = []
    gdnp(problem, start, max_iter=30, tol=0.0, safeguard=False, callback=lambda ray, *_: path.append(ray.w))
    twin = reference.rayleigh_descent(-(x.T @ y) / len(x), x.T @ x / len(x), start, 30)
    for ours, theirs in zip(path, twin, strict=True):
        np.testing.assert_allclose(ours / np.linalg.norm(ours), theirs / np.linalg.norm(theirs), atol=1e-10)


@pytest.mark.parametrize("condition", [1.0, 10.0, 1e2, 1e3])
def test_the_solution_is_linear_regression(condition):
    rng = np.random.default_rng(1)
    x = data_with(second_moment(12, condition, rng), 300, rng) + 3.0
    y = x @ rng.standard_normal(12) + rng.standard_normal(300)
    ours = GDNPRegressor(tol=1e-13, max_iter=100_000).fit(x, y)
    theirs = LinearRegression().fit(x, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=0, atol=1e-8)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=0, atol=1e-8)


@pytest.mark.parametrize("d", [10, 150])
def test_the_ridge_is_scikit_learns(d):
    """d = 150 has no S in memory: the same answer through products with X alone."""
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((400, d)) + 1.0, rng.standard_normal(400)
    weights = rng.integers(0, 3, 400).astype(float)
    ours = GDNPRegressor(alpha=0.3, tol=1e-12).fit(x, y, weights)
    theirs = Ridge(alpha=0.3 * weights.sum(), tol=1e-12).fit(x, y, weights)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-10)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-10)


def test_the_pencil_rate_holds_per_step_and_the_printed_one_does_not():
    """w+ = A^-1 (B - lmin A) w, the step whose rate it is; the print has eigenvalues of B, not of the pencil (B, A)."""
    rng = np.random.default_rng(3)
    printed_violations = checked = 0
    for _ in range(100):
        d = int(rng.integers(3, 9))
        a, b = second_moment(d, 20.0, rng), rng.standard_normal((d, d))
        b = b + b.T
        values = eigh(b, a, eigvals_only=True)
        w = rng.standard_normal(d)
        for _ in range(40):
            rho = (w @ b @ w) / (w @ a @ w)
            w = np.linalg.solve(a, (b - values[0] * a) @ w)
            w /= np.linalg.norm(w)
            after = (w @ b @ w) / (w @ a @ w)
            if rho <= values[-2] or values[-1] - after < 1e-4:
                continue
            checked += 1
            assert (values[-1] - after) / (after - values[-2]) <= rayleigh_rate(values, rho) * (1 + 1e-8)
            own = np.linalg.eigvalsh(b)
            left, right = (own[-1] - after) / (after - own[-2]), rayleigh_rate(own, rho)
            printed_violations += not 0.0 <= left <= right
    assert checked > 500
    assert printed_violations > checked // 2


def test_the_identities_hold_on_every_iterate():
    for seed in range(20):
        problem, start, _, _ = random_problem(seed, condition=50.0)
        gdnp(problem, start, max_iter=50, tol=0.0, safeguard=False, callback=identities(problem, rtol=1e-10))


def test_the_objective_is_the_mean_squared_error_and_the_printed_one_is_not():
    problem, start, x, y = random_problem(4)
    solution = gdnp(problem, start, max_iter=5, tol=0.0, safeguard=False)
    loss = np.mean((y - x @ solution.coef) ** 2)
    np.testing.assert_allclose(solution.history["objective"][-1], loss, rtol=1e-12)
    ray, gamma = problem.ray(start), solution.gamma
    printed = 2 * gamma * ray.correlation / (1.0 + gamma**2)
    assert abs(printed - (ray.at(gamma).value - np.mean(y**2))) > 0.1


def test_one_step_from_the_same_point_is_no_worse_than_gradient_descent():
    """From the same w~ = gamma* w; along whole trajectories the claim would be false."""
    for seed in range(50):
        problem, start, _, _ = random_problem(seed)
        ray = problem.ray(start)
        tilde = -ray.correlation * ray.w
        _, gradient = problem.value_and_gradient(tilde)
        plain, _ = problem.value_and_gradient(tilde - gradient / problem.smoothness)
        ours = gdnp(problem, start, max_iter=1, tol=0.0, safeguard=False).history["objective"][-1]
        assert ours <= plain + FLOOR * abs(problem.best_rho)


def test_plain_gradient_descent_has_the_same_linear_rate():
    """The source calls it sub-linear."""
    problem, *_ = random_problem(5, condition=10.0)
    gap = gradient_descent(problem, max_iter=100, tol=0.0).history["objective"] - problem.energy - problem.best_rho
    bound = convergence_bound("least_squares", np.arange(101), mu=0.1, lipschitz=1.0, gap=gap[0])
    assert (gap <= bound * (1 + 1e-9) + FLOOR * abs(problem.best_rho)).all()


@pytest.mark.parametrize("too_small", [1.5, 4.0, 100.0])
def test_a_step_with_too_small_an_l_is_halved(monkeypatch, too_small):
    """A Hadamard design with three longer columns, d > 128, and an L that has missed them: 100/too_small, not 100."""
    x = hadamard(256).astype(float)
    x[:, 7:10] *= 10.0
    y = x @ np.linspace(-1.0, 1.0, 256) + np.random.default_rng(0).standard_normal(256)
    problem = LeastSquares(Design(x), y)
    assert problem.spectrum.largest == pytest.approx(100.0)
    problem.spectrum = SecondMomentSpectrum(100.0 / too_small, np.nan)
    start = np.random.default_rng(1).standard_normal(256)
    found = gdnp(problem, start, max_iter=5000, tol=1e-9, safeguard=False)
    assert found.reason == "tol"
    np.testing.assert_allclose(found.coef, np.linalg.solve(x, y), atol=1e-6)
    # Above half of the true L, from where every error shrinks, and never past twice it.
    assert 0.5 < 1.0 / too_small / found.history["step"][-1] <= 2.0
    rho = found.history["rho"]
    assert (np.diff(rho) <= 1e-13 * np.abs(rho[:-1])).all()
    monkeypatch.setattr(
        "normscope.solve.least_squares.second_moment",
        lambda design, **_: (design.product, SecondMomentSpectrum(100.0 / too_small, np.nan)),
    )
    model = GDNPRegressor(fit_intercept=False, max_iter=5000).fit(x, y)
    assert model.lipschitz_ == 100.0 / too_small / model.history_["step"][-1]
    np.testing.assert_allclose(model.coef_, np.linalg.solve(x, y), atol=1e-5)


def test_an_exact_l_is_never_doubled():
    """Theory runs, d <= 128, take the theorem's step whatever happens."""
    for seed in range(10):
        problem, start, _, _ = random_problem(seed)
        assert (gdnp(problem, start, max_iter=200, tol=0.0, safeguard=False).history["step"] == 1.0).all()


def test_a_singular_second_moment_promises_no_rate_and_still_converges():
    rng = np.random.default_rng(6)
    x = rng.standard_normal((10, 30))
    y = rng.standard_normal(10)
    model = GDNPRegressor(fit_intercept=False, tol=1e-12, max_iter=100_000).fit(x, y)
    assert model.mu_ == 0.0
    shortest = np.linalg.lstsq(x, y, rcond=None)[0]
    np.testing.assert_allclose(model.coef_, shortest, atol=1e-8)
    with pytest.raises(ValueError, match="mu = 0"):
        convergence_bound("least_squares", 3, mu=model.mu_, lipschitz=model.lipschitz_, gap=1.0)
    assert cosine(model.coef_, shortest) > 1 - 1e-12
