"""Block Lanczos: clusters at the top, dependent starts, invariant spaces."""

import pytest
import torch

from normscope import losses, measure, models
from normscope.curvature import Solver, block_lanczos, lanczos


def _matrix(values: torch.Tensor) -> torch.Tensor:
    q, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=_generator(0), dtype=torch.float64))
    return q @ torch.diag(values) @ q.T


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _starts(b: int, n: int) -> torch.Tensor:
    return torch.randn(b, n, generator=_generator(1), dtype=torch.float64)


def test_all_of_a_repeated_top_eigenvalue_is_found():
    """One vector's Krylov space holds one vector of an eigenspace; a block of three holds three."""
    a = _matrix(torch.cat([torch.full((3,), 7.0), torch.linspace(0, 5, 57)]).double())
    one = lanczos(lambda v: a @ v, _starts(1, 60)[0], tol=1e-6, most=60)
    assert one.converged
    assert one.values[1] < 6
    three = block_lanczos(lambda v: a @ v, _starts(3, 60), k=3, tol=1e-9, most=60)
    assert three.converged
    assert three.values[:3] == pytest.approx([7.0] * 3, abs=1e-9)
    torch.testing.assert_close(three.vectors @ three.vectors.T, torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(a @ three.vectors.T, 7 * three.vectors.T, rtol=1e-6, atol=1e-6)


def test_residuals_are_those_of_the_vectors():
    values = torch.cat([100 - 0.01 * torch.arange(10.0), torch.linspace(-20, 50, 190)]).double()
    a = _matrix(values)
    found = block_lanczos(lambda v: a @ v, _starts(4, 200), k=2, smallest=True, tol=1e-4, most=150)
    assert found.converged
    for i in range(2):
        v = found.vectors[i]
        assert float((a @ v - found.values[i] * v).norm()) / 100 == pytest.approx(found.residuals[i], rel=1e-3)
        assert found.residuals[i] <= 1e-4
    assert found.values[0] == pytest.approx(100, rel=1e-3)
    assert found.values[-1] == pytest.approx(-20, abs=0.05)
    assert float(found.smallest_vector @ a @ found.smallest_vector) == pytest.approx(found.values[-1])


def test_dependent_starts_and_invariant_spaces_end_exactly():
    a = _matrix(torch.arange(6.0).double())
    start = _starts(1, 6).repeat(3, 1)
    found = block_lanczos(lambda v: a @ v, start, tol=0.0, most=50)
    assert found.converged
    assert found.products == 6
    assert found.values == pytest.approx([5, 4, 3, 2, 1, 0], abs=1e-10)
    zero = block_lanczos(torch.zeros_like, start, most=5)
    assert zero.converged
    assert zero.values[0] == 0


def test_products_are_counted_and_not_converged_is_said():
    a = _matrix(torch.linspace(0, 1, 100).double())
    calls = []
    found = block_lanczos(lambda v: calls.append(1) or a @ v, _starts(3, 100), tol=1e-12, most=10)
    assert found.products == len(calls) == 10
    assert not found.converged
    assert found.residuals[0] > 1e-12


def test_measure_with_a_block_and_from_an_earlier_result():
    model = models.MLP(8, 4, width=20, norm="batch")
    x = torch.randn(32, 8, generator=_generator(2))
    y = torch.randn(32, 4, generator=_generator(3))
    cold = measure(model, losses.half_mse, (x, y), hessian=False, solver=Solver(tol=1e-4))
    block = measure(model, losses.half_mse, (x, y), hessian=False, solver=Solver(tol=1e-4, block=4))
    assert block.lambda_max == pytest.approx(cold.lambda_max, rel=1e-4)
    warm = measure(model, losses.half_mse, (x, y), hessian=False, solver=Solver(tol=1e-4), start=cold)
    assert warm.products < cold.products
    assert warm.lambda_max == pytest.approx(cold.lambda_max, rel=1e-4)
    with pytest.raises(ValueError, match="other parameters"):
        measure(models.MLP(8, 4, width=10), losses.half_mse, (x, y), start=cold)
