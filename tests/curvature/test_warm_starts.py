"""A search from an earlier one's memory: right in every case, fewer products in the one it is made for."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from normscope import losses, measure, models
from normscope.curvature import Solver
from normscope.curvature.eigensolvers.davidson import FEWEST_PRODUCTS, FEWEST_WARM_PRODUCTS, davidson
from normscope.curvature.eigensolvers.lanczos import Memory, Ritz, lanczos
from normscope.curvature.eigensolvers.solver import warm_start

CLUSTER = torch.cat([100 - 2.5 * torch.arange(9.0), torch.linspace(0, 25, 191)]).double()


def _draws(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _matrix(values: Tensor) -> Tensor:
    q = torch.linalg.qr(_draws(len(values), len(values), seed=0))[0]
    return q @ torch.diag(values) @ q.T


def _perturbed(a: Tensor, size: float, seed: int = 5) -> Tensor:
    """By a random symmetric matrix that moves a vector by about `size` of the largest eigenvalue."""
    change = _draws(len(a), len(a), seed=seed)
    change = (change + change.T) / (2 * len(a)) ** 0.5
    return a + size * float(torch.linalg.eigvalsh(a)[-1]) * change


class Counted:
    def __init__(self, a: Tensor) -> None:
        self.a, self.count = a, 0

    def __call__(self, v: Tensor) -> Tensor:
        self.count += 1
        return self.a @ v


def _cold(a: Tensor, tol: float = 1e-3, **options) -> Ritz:
    return lanczos(lambda v: a @ v, _draws(len(a)), mix=0.0, least=FEWEST_PRODUCTS, tol=tol, **{"keep": 12, **options})


def _start(memory: Memory) -> Tensor:
    other = _draws(1, memory.vectors.shape[1], seed=2).to(memory.vectors)
    return warm_start(memory, other / other.norm())[0]


def _warm(a: Tensor, memory: Memory, **options) -> tuple[Ritz, int]:
    product = Counted(a)
    fresh = _draws(len(a)).to(a)
    found = davidson(product, memory, _start(memory).to(a), fresh, **{"keep": 12, **options})
    return found, product.count


def _residual(a: Tensor, value: float, v: Tensor, scale: float) -> float:
    return float((a @ v - value * v).norm()) / scale


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [0.0, 0.003, 0.03, 0.1])
def test_value_and_residual_are_those_of_the_dense_matrix(size, dtype):
    """Also of the memory that is handed on: orthonormal, and led by the pair that was found."""
    a = _matrix(CLUSTER)
    memory = _cold(a).memory
    b = _perturbed(a, size).to(dtype)
    found, count = _warm(b, replace(memory, vectors=memory.vectors.to(dtype)), smallest=True, tol=1e-3)
    exact = torch.linalg.eigvalsh(b.double())
    scale = max(map(abs, found.values))
    assert found.converged
    assert found.products == count
    assert max(found.residuals[0], found.residuals[-1]) <= 1e-3
    assert found.values[0] == pytest.approx(float(exact[-1]), rel=2e-3)
    assert found.values[-1] == pytest.approx(float(exact[0]), abs=2e-3 * scale)
    close = {"rel": 1e-6} if dtype == torch.float64 else {"abs": 1e-6}
    assert found.residuals[0] == pytest.approx(_residual(b, found.values[0], found.vectors[0], scale), **close)
    assert found.residuals[-1] == pytest.approx(_residual(b, found.values[-1], found.smallest_vector, scale), **close)
    kept = found.memory
    assert len(kept.values) == len(kept.vectors) == 12
    assert kept.values[0] == found.values[0]
    assert torch.equal(kept.vectors[0], found.vectors[0])
    eye = torch.eye(12, dtype=dtype)
    torch.testing.assert_close(kept.vectors @ kept.vectors.T, eye, rtol=0, atol=1e-10 if close.get("rel") else 1e-5)


def test_a_cluster_takes_a_third_of_the_products_where_the_matrix_has_moved_little():
    """Nine near-equal eigenvalues: the last vector alone is no help, the memory is; again from its own memory."""
    a = _matrix(CLUSTER)
    memory = _cold(a).memory
    for seed in range(5, 10):
        a = _perturbed(a, 0.01, seed)
        found, count = _warm(a, memory)
        alone, _ = _warm(a, Memory(memory.values[:1], memory.vectors[:1]))
        assert found.values[0] == pytest.approx(float(torch.linalg.eigvalsh(a)[-1]), rel=1e-3)
        assert 3 * count <= _cold(a).products
        assert count < alone.products
        memory = found.memory


def test_without_a_memory_of_neighbours_it_is_lanczos():
    """One vector remembered: the same space, product by product."""
    a = _perturbed(_matrix(CLUSTER), 0.01)
    top = _cold(_matrix(CLUSTER)).memory
    start = _start(top)
    for most in (4, 8, 12):
        options = {"tol": 0.0, "most": most}
        expected = lanczos(lambda v: a @ v, start, mix=0.0, **options)
        found = davidson(lambda v: a @ v, Memory((0.0,), top.vectors[:1]), start, start, **options)
        assert not found.converged
        assert found.products == most
        assert found.values == pytest.approx(expected.values, rel=1e-6)


@pytest.mark.parametrize("ahead", [1.03, 1.3, 3.0])
@pytest.mark.parametrize("rank", [1, 5, 8])
def test_a_remembered_neighbour_that_has_overtaken_is_found(rank, ahead):
    """The last vector stays an exact eigenvector of the new matrix; nothing but what is remembered points away."""
    values = CLUSTER.clone()
    a = _matrix(values)
    memory = _cold(a, tol=1e-8).memory
    values[rank] = ahead * 100
    found, _ = _warm(_matrix(values), memory)
    assert found.converged
    assert found.values[0] == pytest.approx(ahead * 100, rel=1e-3)


@pytest.mark.parametrize("ahead", [1.5, 3.0])
def test_a_vector_that_was_never_seen_is_found_by_its_part_in_the_start(ahead):
    """As the gradient has one in it; 30 % of the hundredth that is mixed in."""
    a = _matrix(CLUSTER)
    memory = _cold(a).memory
    q = torch.linalg.qr(_draws(len(a), len(a), seed=0))[0]
    hidden = q[:, 150]
    a = a + (ahead * 100 - float(CLUSTER[150])) * torch.outer(hidden, hidden)
    start = _start(memory) + 0.003 * hidden
    found = davidson(lambda v: a @ v, memory, start, start)
    assert found.converged
    assert found.values[0] == pytest.approx(ahead * 100, rel=1e-3)


def test_a_vector_that_has_lost_its_eigenvalue_costs_one_product():
    a = _matrix(torch.cat([torch.tensor([100.0, 90.0]), torch.linspace(0, 25, 98)]).double())
    memory = _cold(a).memory
    other = _matrix(torch.cat([torch.tensor([0.0, 0.1]), torch.linspace(0, 25, 97), torch.tensor([100.0])]).double())
    fresh = _cold(other)
    found, count = _warm(other, memory)
    assert found.products == count == fresh.products + 1
    assert found.values == fresh.values
    assert len(found.memory.values) == len(fresh.memory.values)


def test_a_memory_of_another_matrix_costs_little():
    """The vectors remembered are eigenvectors still, of the lowest values."""
    a, other = _matrix(CLUSTER), _matrix(CLUSTER.flip(0))
    found, count = _warm(other, _cold(a).memory)
    assert found.values[0] == pytest.approx(100, rel=1e-3)
    assert count <= _cold(other).products + 2


def test_not_converged_is_said_with_its_residual():
    a = _matrix(CLUSTER)
    moved = _perturbed(a, 0.1)
    for most in (1, 2, 5):
        found, count = _warm(moved, _cold(a).memory, most=most, tol=1e-9)
        assert found.products == count == most
        assert not found.converged
        assert found.residuals[0] == pytest.approx(
            _residual(moved, found.values[0], found.vectors[0], abs(found.values[0]))
        )
    exact, _ = _warm(a, _cold(a).memory, most=FEWEST_WARM_PRODUCTS - 1, tol=1.0)
    assert not exact.converged


def test_small_and_invariant_spaces_end_exactly():
    """Fewer dimensions than pairs to keep, rank one, zero."""
    for values in ([3.0, 1.0], [2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [-1.0, -2.0, -5.0]):
        a = _matrix(torch.tensor(values).double())
        first = _cold(a, tol=1e-12)
        found, count = _warm(a, first.memory, tol=1e-12, smallest=True)
        assert found.converged
        assert count <= len(values) + 1
        assert found.values[0] == pytest.approx(max(values), abs=1e-9)
        kept = found.memory.vectors
        torch.testing.assert_close(kept @ kept.T, torch.eye(len(kept), dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("n", [3, 8])
def test_what_rounding_leaves_of_a_residual_is_not_multiplied(n):
    """Once the space is whole the lower end has nowhere to go; a vector multiplied twice would count twice."""
    for seed in range(20):
        a = _draws(n, n, seed=seed).float()
        a = a + a.T
        memory = _cold(a.double()).memory
        found, count = _warm(a, memory, smallest=True, tol=1e-8)
        exact = torch.linalg.eigvalsh(a.double())
        assert count <= n + 1
        assert (found.values[0], found.values[-1]) == pytest.approx((float(exact[-1]), float(exact[0])), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-28, 1e20])
def test_products_whose_squares_leave_float32_are_not_taken_for_an_end(scale):
    a = _matrix(CLUSTER)
    memory = _cold(a).memory
    found, count = _warm((_perturbed(a, 0.03) * scale).float(), memory)
    expected, usual = _warm(_perturbed(a, 0.03).float(), memory)
    assert found.converged
    assert count == usual > 1
    assert found.values[0] == pytest.approx(expected.values[0] * scale, rel=1e-4)


def test_a_matrix_that_bends_down_costs_one_product_more_than_afresh():
    a = _matrix(-CLUSTER - 10)
    found, count = _warm(a, _cold(a).memory)
    assert count == _cold(a).products + 1
    assert found.values[0] == pytest.approx(-10, abs=0.2)


def test_measure_takes_a_result_and_says_what_is_wrong_with_one():
    model = models.MLP(8, 4, width=20, norm="batch")
    x, y = _draws(32, 8).float(), _draws(32, 4, seed=3).float()
    cold = measure(model, losses.half_mse, (x, y), solver=Solver(tol=1e-4), hessian=True)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.001)
    warm = measure(model, losses.half_mse, (x, y), solver=Solver(tol=1e-4), start=cold, hessian=True)
    again = measure(model, losses.half_mse, (x, y), solver=Solver(tol=1e-4), hessian=True)
    assert warm.products < again.products
    assert warm.lambda_max == pytest.approx(again.lambda_max, rel=1e-4)
    both = measure(model, losses.half_mse, (x, y), matrix="hessian", solver=Solver(tol=1e-4), start=cold, hessian=True)
    assert (both.hessian_min, both.hessian_max) == pytest.approx((again.hessian_min, again.hessian_max), rel=1e-3)
    with pytest.raises(ValueError, match="no remembered eigenvectors"):
        measure(model, losses.half_mse, (x, y), start=replace(cold, memory=None))
    assert "memory" not in cold.plain()
    # Saved, the vector does not take the memory along.
    assert cold.vector.untyped_storage().nbytes() == cold.vector.nbytes < cold.memory.vectors.nbytes


def test_measure_sees_the_vector_that_has_overtaken():
    """The last vector stays an exact eigenvector, and is no longer the top."""
    layer = torch.nn.Linear(2, 1, bias=False).double()
    x = torch.tensor([[3.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    y = torch.zeros(2, 1, dtype=torch.float64)
    first = measure(layer, losses.half_mse, (x, y), hessian=False)
    assert first.lambda_max == pytest.approx(4.5)
    second = measure(layer, losses.half_mse, (x.flip(1) * 2, y), hessian=False, start=first)
    assert second.lambda_max == pytest.approx(18.0)
    assert second.converged
