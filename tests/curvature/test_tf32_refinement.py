"""A search by rounded products with its end by exact ones: the exact answer, whatever rounding did."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope import measure, models
from normscope.curvature.autograd import precision
from normscope.curvature.autograd.patching import differentiable_kernels
from normscope.curvature.autograd.precision import is_rounded, rounded
from normscope.curvature.eigensolvers import solver
from normscope.curvature.eigensolvers.davidson import FEWEST_PRODUCTS, davidson
from normscope.curvature.eigensolvers.lanczos import Ritz, lanczos
from normscope.curvature.eigensolvers.solver import warm_start
from normscope.curvature.eigensolvers.tf32_refinement import tf32_first, tf32_pays
from normscope.curvature.operators.gauss_newton import gauss_newton_product
from normscope.curvature.operators.loss_of_outputs import OutputCurvature

SIZE = 80


def matrix(*top: float) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64)).Q
    values = torch.cat([torch.tensor(top, dtype=torch.float64), torch.linspace(2, -4, SIZE - len(top))])
    return basis @ torch.diag(values) @ basis.T


def noise(size: float) -> Tensor:
    drawn = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drawn = drawn + drawn.T
    return size * drawn / torch.linalg.matrix_norm(drawn, 2)


class Counted:
    """v -> A v, and v -> (A + error) v for a rounded product; both are counted."""

    def __init__(self, a: Tensor, error: Tensor) -> None:
        self.a, self.error, self.exact, self.rounded = a, error, 0, 0

    def __call__(self, v: Tensor) -> Tensor:
        self.exact += 1
        return self.a @ v

    def rounded_product(self, v: Tensor) -> Tensor:
        self.rounded += 1
        return (self.a + self.error) @ v


def start() -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


FRESH = partial(lanczos, start=start(), mix=0.0)
OPTIONS = {"smallest": False, "tol": 1e-3, "least": FEWEST_PRODUCTS, "most": 100, "keep": 12}


def in_two_parts(product: Counted, **options) -> Ritz:
    """A fresh search that begins by rounded products and ends by exact ones."""
    return tf32_first(lambda p, **k: FRESH(p, **k), product, product.rounded_product, **options)


@pytest.mark.parametrize("smallest", [False, True])
@pytest.mark.parametrize("error", [0.0, 1e-3, 1e-2, 1e-1])
def test_value_and_residual_are_of_exact_products(error, smallest):
    a = matrix(10.0, 9.7, 9.5)
    product = Counted(a, noise(error * 10))
    found = tf32_first(
        lambda p, **k: FRESH(p, **k), product, product.rounded_product, **OPTIONS | {"smallest": smallest}
    )
    values = torch.linalg.eigvalsh(a)
    assert found.converged
    assert found.products == product.exact + product.rounded
    assert error > 0.01 or product.exact < product.rounded
    for v, value, residual, true in [
        (found.vectors[0], found.values[0], found.residuals[0], values[-1]),
        (found.smallest_vector, found.values[-1], found.residuals[-1], values[0]),
    ][: 2 if smallest else 1]:
        torch.testing.assert_close(v.norm(), torch.ones((), dtype=torch.float64))
        assert float((a @ v - value * v).norm()) / 10 == pytest.approx(residual, rel=1e-3, abs=1e-9)
        assert residual <= 1e-3
        assert value == pytest.approx(float(true), rel=1e-4)


@pytest.mark.parametrize("keep", [1, 12])
def test_exact_products_are_few_where_rounding_is_small(keep):
    product = Counted(matrix(10.0, 9.7, 9.5), noise(2e-3))
    alone = FRESH(product, **OPTIONS)
    product.exact = 0
    found = in_two_parts(product, **OPTIONS | {"keep": keep})
    assert product.exact == 1
    assert found.products <= alone.products + 2
    assert len(found.memory.values) == keep


def test_the_end_knows_the_neighbours_whatever_is_kept_of_it():
    """Rounding turns the vector by more than is asked for, among those that nearly coincide."""
    counts = []
    for keep in (1, 12):
        product = Counted(matrix(10.0, 9.97, 9.95, 9.93), noise(0.1))
        assert tf32_first(
            lambda p, **k: FRESH(p, **k), product, product.rounded_product, **OPTIONS | {"keep": keep}
        ).converged
        counts.append(product.exact)
    assert counts[0] == counts[1]


def test_residuals_of_the_top_are_relative_to_itself():
    """As those of the search by exact products are, though the other end is eighteen times as far from zero."""
    product = Counted(matrix() - 1.9 * torch.eye(SIZE, dtype=torch.float64), noise(1e-3))
    alone = FRESH(lambda v: product.a @ v, **OPTIONS)
    found = in_two_parts(product, **OPTIONS)
    assert found.converged
    assert found.residuals[0] <= 1e-3
    assert found.values[0] == pytest.approx(0.1, rel=1e-3)
    assert found.values[0] == pytest.approx(alone.values[0], rel=1e-3)


def test_a_loose_search_is_not_taken_for_a_misled_one():
    product = Counted(matrix(10.0, 9.7, 9.5), noise(1e-3))
    found = tf32_first(
        lambda p, **k: FRESH(p, **k), product, product.rounded_product, **OPTIONS | {"tol": 0.5, "least": 2}
    )
    assert found.converged
    assert found.residuals[0] > 0.2
    assert product.exact == 1


def test_products_are_as_many_as_were_asked_for():
    product = Counted(matrix(10.0, 9.7, 9.5), noise(1e-3))
    assert in_two_parts(product, **OPTIONS | {"tol": 0.5}).products == FEWEST_PRODUCTS


def test_where_rounded_products_fail_the_search_is_exact():
    """As torch fails a forward that reads its older flags of precision."""
    a = matrix(10.0, 9.7, 9.5)

    def product(v: Tensor) -> Tensor:
        return a @ v

    def failing(v: Tensor) -> Tensor:
        raise RuntimeError("PyTorch is checking whether allow_tf32 is enabled")

    found = tf32_first(lambda p, **k: FRESH(p, **k), product, failing, **OPTIONS)
    alone = FRESH(product, **OPTIONS)
    assert (found.values, found.products) == (alone.values, alone.products)


@pytest.mark.parametrize("values", [(1.0, 0.3, 0.2, 0.1, -6.0, -5.5), (0.0, 0.0), (-1.0, -2.0, -3.0, -9.0)])
def test_nothing_is_remembered_twice(values):
    a = torch.diag(torch.tensor([*values, *[0.0] * 6], dtype=torch.float64))
    first = torch.ones(len(a), dtype=torch.float64)
    search = partial(lanczos, start=first, mix=0.0)
    seen = tf32_first(lambda p, **k: search(p, **k), lambda v: a @ v, lambda v: a @ v, **OPTIONS)
    again = davidson(lambda v: a @ v, seen.memory, seen.vectors[0], first, keep=12)
    for memory in (seen.memory, again.memory):
        torch.testing.assert_close(memory.vectors @ memory.vectors.T, torch.eye(len(memory.values)).double())


def test_a_search_that_was_misled_is_made_again():
    """As by a forward mode that is of another map, which the first exact product shows."""
    a = matrix(10.0, 9.7, 9.5)
    product = Counted(a, matrix(30.0).flip(0, 1) - a)
    found = in_two_parts(product, **OPTIONS)
    alone = FRESH(lambda v: a @ v, **OPTIONS)
    assert found.values == alone.values
    assert found.products == product.rounded + 1 + alone.products


def test_from_a_memory():
    a = matrix(10.0, 9.7, 9.5)
    seen = FRESH(lambda v: a @ v, **OPTIONS)
    product = Counted(a + noise(0.1), noise(1e-3))
    first = warm_start(seen.memory, start()[None])[0]
    found = tf32_first(
        lambda p, **k: davidson(p, seen.memory, first, start(), **k),
        product,
        product.rounded_product,
        **OPTIONS | {"least": 3},
    )
    assert found.converged
    assert product.exact == 1
    assert found.values[0] == pytest.approx(float(torch.linalg.eigvalsh(product.a)[-1]), rel=1e-6)


def test_one_direction_is_both_ends():
    found = tf32_first(
        lambda p, **k: lanczos(p, torch.ones(1), mix=0.0, **k),
        lambda v: 3 * v,
        lambda v: 3 * v,
        **OPTIONS | {"smallest": True},
    )
    assert found.values == (3.0,)
    assert found.converged


@pytest.mark.parametrize("smallest", [False, True])
def test_too_few_products_are_said_to_be(smallest):
    product = Counted(matrix(*torch.linspace(10, 2, 40).tolist()), noise(1e-3))
    found = tf32_first(
        lambda p, **k: FRESH(p, **k), product, product.rounded_product, **OPTIONS | {"most": 9, "smallest": smallest}
    )
    assert not found.converged
    assert found.products == 9
    # What five rounded ones have found is not thrown away.
    assert found.values[0] > FRESH(lambda v: product.a @ v, **OPTIONS | {"most": 5}).values[0]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"tol": 4e-4}, False),
        ({"most": 15}, False),
        ({"capability": (7, 5)}, False),
        ({"cuda": None}, False),
        ({"dtype": torch.float64}, False),
        ({"device": "cpu"}, False),
    ],
)
def test_when_a_search_is_rounded(changed, expected, monkeypatch):
    found = {"device": "cuda", "dtype": torch.float32, "tol": 5e-4, "most": 16, "capability": (8, 0), "cuda": "13.0"}
    found |= changed
    monkeypatch.setattr(torch.version, "cuda", found["cuda"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: found["capability"])
    like = SimpleNamespace(device=torch.device(found["device"]), dtype=found["dtype"])
    assert tf32_pays(like, found["tol"], found["most"]) is expected


def test_rounding_is_not_taken_for_another_map():
    """<J v, u> and <v, J^T u> part by it; in a product that is not rounded that would end forward mode."""

    class Passes:
        forward_mode = True

        def use_reverse_mode(self) -> None:
            self.forward_mode = False

    passes = Passes()

    def vjp(u: Tensor) -> Tensor:
        return 1.1 * u if is_rounded() else u

    product = gauss_newton_product(OutputCurvature(lambda t, _: (t, None)), vjp, lambda v: v, None, passes)
    with rounded():
        product(torch.ones(3))
    assert passes.forward_mode
    product(torch.ones(3))
    assert passes.forward_mode


def test_a_measurement_by_rounded_products_has_the_exact_value(monkeypatch):
    """Whose rounding is by hand here: outputs' tangents to ten bits."""
    torch.manual_seed(0)
    model = models.CNN(norm="batch")
    batch = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    exact = measure(model, F.cross_entropy, batch, hessian=False)
    seen = []

    def coarse(search: Callable, product: Callable, rounded_product: Callable, **options) -> object:
        def exact(v: Tensor) -> Tensor:
            seen.append(is_rounded())
            return product(v)

        def by_hand(v: Tensor) -> Tensor:
            seen.append(True)
            return rounded_product(v).to(torch.bfloat16).float()

        return tf32_first(search, exact, by_hand, **options)

    monkeypatch.setattr(solver, "tf32_pays", lambda *_: True)
    monkeypatch.setattr(solver, "tf32_first", coarse)
    found = measure(model, F.cross_entropy, batch, hessian=False)
    assert True in seen
    assert seen[-1] is False
    assert found.residual <= 1e-3
    assert found.products == len(seen)
    assert found.lambda_max == pytest.approx(exact.lambda_max, rel=1e-5)
    again = measure(model, F.cross_entropy, batch, hessian=False, start=found)
    assert again.lambda_max == pytest.approx(exact.lambda_max, rel=1e-5)


class Constant(nn.Module):
    """Its forward mode sees the scale, its gradient does not."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.square().mean()
        return x * scale


def test_another_forward_mode_than_backward_shows_in_the_first_exact_product(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), Constant(), nn.Linear(6, 3))
    batch = torch.randn(32, 4), torch.randint(3, (32,))
    exact = measure(model, F.cross_entropy, batch, hessian=False)
    monkeypatch.setattr(solver, "tf32_pays", lambda *_: True)
    found = measure(model, F.cross_entropy, batch, hessian=False)
    assert found.lambda_max == pytest.approx(exact.lambda_max, rel=1e-4)
    assert found.notes == exact.notes


@pytest.mark.gpu
@pytest.mark.parametrize("stats", ["batch", "running"])
def test_on_a_gpu_a_rounded_product_is_near_and_the_result_exact(stats, monkeypatch):
    torch.manual_seed(0)
    model = models.CNN(norm="batch").cuda()
    batch = torch.randn(64, 3, 32, 32).cuda(), torch.randint(10, (64,)).cuda()
    found = measure(model, F.cross_entropy, batch, stats=stats, hessian=True)
    assert tf32_pays(found.vector, 1e-3, 100)
    before = precision._get("cuda", "conv"), precision._get("cuda", "matmul")
    with rounded(), differentiable_kernels("cuda"):
        assert precision._get("cuda", "conv") == precision._get("cuda", "matmul") == "tf32"
    assert (precision._get("cuda", "conv"), precision._get("cuda", "matmul")) == before
    monkeypatch.setattr(solver, "tf32_pays", lambda *_: False)
    exact = measure(model, F.cross_entropy, batch, stats=stats, hessian=True)
    assert found.residual <= 1e-3
    for name in ("lambda_max", "hessian_max"):
        assert getattr(found, name) == pytest.approx(getattr(exact, name), rel=1e-4)
    assert found.hessian_min == pytest.approx(exact.hessian_min, abs=1e-3 * exact.hessian_max)
