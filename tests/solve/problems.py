"""What the tests of `solve` share: moments with a condition number, data with exactly these moments, estimators."""

import numpy as np

from normscope.solve import GDNPClassifier, GDNPMLPClassifier, GDNPRegressor

ESTIMATORS = (GDNPRegressor, GDNPClassifier, GDNPMLPClassifier)


def rotation(d, rng):
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


def second_moment(d, condition, rng):
    """S with eigenvalues from 1/condition to 1, both ends taken."""
    q = rotation(d, rng)
    values = np.exp(-np.log(condition) * np.concatenate([[0.0, 1.0], rng.random(d - 2)]))
    return (q * values) @ q.T


def data_with(s, n, rng):
    """(n, d) rows with mean zero and second moment s, to rounding."""
    x = rng.standard_normal((n, len(s)))
    x -= x.mean(axis=0)
    x = x @ np.linalg.inv(np.linalg.cholesky(x.T @ x / n)).T
    return x @ np.linalg.cholesky(s).T


def gaussian_moments(d, condition, rng, *, separation=0.6):
    """(u, S) with u^T S^-1 u = separation < 1."""
    s = second_moment(d, condition, rng)
    u = np.linalg.cholesky(s) @ rng.standard_normal(d)
    return u * np.sqrt(separation / (u @ np.linalg.solve(s, u))), s


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def small(estimator, n=80, seed=0):
    """(x, y) of three features for an estimator: numbers, or \"yes\" and \"no\"."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 3))
    y = x @ np.array([1.0, -2.0, 0.5]) + 0.3 * rng.standard_normal(n) + 1.0
    return x, y if estimator is GDNPRegressor else np.where(y > 1.0, "yes", "no")
