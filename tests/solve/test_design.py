"""The operator against dense matrices, and the spectrum it gives."""

import numpy as np
import pytest
from problems import data_with, second_moment

from normscope.solve.design import Design
from normscope.solve.second_moment import exact_spectrum, lanczos_spectrum


def dense(x, omega, signs, center, constant):
    mean = omega @ x if center else np.zeros(x.shape[1])
    z = (x - mean) * signs[:, None]
    if constant:
        size = np.sqrt(omega @ ((x - mean) ** 2).sum(axis=1) / x.shape[1])
        z = np.column_stack([z, size * signs])
    return z


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_products_are_the_dense_ones(center, constant, dtype):
    rng = np.random.default_rng(0)
    # More rows than a block holds, and not a multiple of one.
    x = (rng.standard_normal((9001, 5)) + 2.0).astype(dtype)
    omega, signs = rng.random(9001), np.where(rng.random(9001) < 0.5, 1.0, -1.0)
    design = Design(x, omega, center=center, constant=constant).signed(signs)
    z = dense(x.astype(np.float64), omega / omega.sum(), signs, center, constant)
    s = z.T @ (z * (omega / omega.sum())[:, None])
    close = {"rtol": 1e-10, "atol": 1e-12} if dtype == np.float64 else {"rtol": 1e-4, "atol": 1e-5}
    w, a, b = rng.standard_normal(design.size), rng.standard_normal(9001), rng.standard_normal(9001)
    np.testing.assert_allclose(design.forward(w), z @ w, **close)
    np.testing.assert_allclose(design.backward(a, b), np.stack([a, b]) * (omega / omega.sum()) @ z, **close)
    np.testing.assert_allclose(design.product(w), s @ w, **close)
    np.testing.assert_allclose(design.gram(), s, **close)
    coef, intercept = design.coefficients(w)
    np.testing.assert_allclose((x @ coef + intercept) * signs, z @ w, **close)
    np.testing.assert_allclose(design.direction(coef, intercept), w, **close)


def test_the_data_are_neither_copied_nor_changed():
    x = np.random.default_rng(1).standard_normal((50, 3))
    before = x.copy()
    design = Design(x, center=True, constant=True)
    assert design.x is x
    design.backward(design.forward(np.ones(4)))
    assert (x == before).all()


def test_lanczos_finds_the_largest_eigenvalue_to_a_twentieth():
    """Above it by the residual at most, below 1e-2; below it by what a cluster hides. Twice below would be unsafe."""
    rng = np.random.default_rng(2)
    for condition in (1.0, 10.0, 1e6):
        s = second_moment(200, condition, rng)
        for seed in range(20):
            found = lanczos_spectrum(lambda v: s @ v, 200, np.random.default_rng(seed))  # noqa: B023
            assert 0.95 <= found.largest <= 1.01
            assert np.isnan(found.smallest)
            assert not found.certain


class MissesTheFirst:
    """A generator whose first vector has nothing of the first coordinate."""

    def __init__(self, seed=0):
        self.rng, self.calls = np.random.default_rng(seed), 0

    def standard_normal(self, shape):
        drawn, self.calls = self.rng.standard_normal(shape), self.calls + 1
        if self.calls == 1:
            drawn[0] = 0.0
        return drawn


def test_lanczos_begins_again_where_its_space_closes():
    """Orthogonal columns, one of them longer: two eigenvalues, and a start without the larger one's vector."""
    values = np.r_[100.0, np.ones(255)]
    found = lanczos_spectrum(lambda v: values * v, 256, MissesTheFirst())
    assert found.largest == pytest.approx(100.0, rel=1e-10)
    # Nothing to find twice: as many products as steps at most, whatever closes.
    assert lanczos_spectrum(lambda v: 0.0 * v, 256, np.random.default_rng(0)).largest == 0.0


def test_eigenvalues_at_rounding_count_as_zero():
    rng = np.random.default_rng(3)
    x = data_with(second_moment(4, 10.0, rng), 100, rng)
    doubled = np.column_stack([x, x[:, 0]])
    found = exact_spectrum(Design(doubled).gram())
    assert found.smallest == 0.0
    assert found.rate == 1.0
    s = doubled.T @ doubled / 100
    assert found.inverse_square(s[0]) == pytest.approx(s[0] @ np.linalg.pinv(s) @ s[0])
