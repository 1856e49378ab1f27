"""Lanczos, the density and the trace know only a matrix: random, clustered, degenerate, deficient, tiny, float32."""

import math

import pytest
import torch
from torch import Tensor
from twins import dense_dual, opened

from normscope import losses
from normscope.curvature import lanczos
from normscope.curvature.eigensolvers.density import density, trace
from normscope.models import MLP


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_spectrum(values: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A symmetric matrix and its eigenvectors, one a column."""
    vectors = torch.linalg.qr(draws(len(values), len(values), seed=seed))[0]
    return vectors @ torch.diag(values) @ vectors.T, vectors


def true_residuals(a: Tensor, found, k: int) -> list[float]:
    scale = max(map(abs, found.values))
    pairs = zip(found.values[:k], found.vectors, strict=True)
    return [float((a @ v - theta * v).norm()) / scale for theta, v in pairs]


SPECTRA = {
    "random": torch.linspace(-3, 10, 60).double(),
    "ten near-equal": torch.cat([torch.linspace(1, 30, 90), 100 + torch.linspace(0, 0.5, 10)]).double(),
    "decaying": 100 * 0.8 ** torch.arange(80).double(),
    "degenerate": torch.tensor([5.0] * 10 + [1.0] * 20).double(),
    "rank 3": torch.cat([torch.zeros(47), torch.tensor([1.0, 2.0, 7.0])]).double(),
    "negative definite": -torch.linspace(1, 9, 40).double(),
    "indefinite": torch.cat([-torch.linspace(1, 50, 20), torch.linspace(1, 10, 20)]).double(),
    "identity": torch.ones(12).double(),
    "tiny numbers": 1e-30 * torch.linspace(1, 9, 30).double(),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SPECTRA)
def test_both_ends_are_found_with_their_true_residuals(name, seed):
    values = SPECTRA[name]
    a, _ = with_spectrum(values, seed)
    found = lanczos(lambda v: a @ v, draws(len(values), seed=10 + seed), smallest=True, tol=1e-3)
    size = float(values.abs().max())
    assert found.converged
    assert found.products <= len(values)
    assert max(found.residuals[0], found.residuals[-1]) <= 1e-3
    assert abs(found.values[0] - float(values.max())) <= 2e-3 * (
        size if values.max() < 0 else max(float(values.max()), size / 100)
    )
    assert abs(found.values[-1] - float(values.min())) <= 2e-3 * size
    # Relative to the end's own size, or to a hundredth of the other's (`scales`).
    own = 1.0 if values.max() < 0 else max(float(values.max()), size / 100) / size
    assert abs(found.residuals[0] * own - true_residuals(a, found, 1)[0]) <= 1e-9
    w = found.smallest_vector
    assert abs(found.residuals[-1] - float((a @ w - found.values[-1] * w).norm()) / size) <= 2e-3 * 1e-3 + 1e-10
    assert abs(float(found.vectors[0].norm()) - 1) <= 1e-10
    assert abs(float(w.norm()) - 1) <= 1e-10


@pytest.mark.parametrize("width", [0.001, 0.2])
def test_ten_near_equal_values_are_within_a_thousandth(width):
    """As ten outputs make them; where a stop on a small change of the value is wrong by up to `width`."""
    values = torch.cat([torch.linspace(1, 30, 90), 100 * (1 - width * torch.linspace(0, 1, 10))]).double()
    a, _ = with_spectrum(values)
    for seed in range(10):
        found = lanczos(lambda v: a @ v, draws(100, seed=seed), tol=1e-3)
        assert found.converged
        assert max(found.residuals[0], true_residuals(a, found, 1)[0]) <= 1e-3
        assert abs(found.values[0] / 100 - 1) <= 1e-3


def test_a_small_residual_certifies_an_eigenvalue_not_the_largest():
    """Members of a cluster a few residuals wide: the value is off by up to twice the residual asked for."""
    values = SPECTRA["ten near-equal"]
    a, _ = with_spectrum(values)
    for seed in range(10):
        found = lanczos(lambda v: a @ v, draws(100, seed=seed), tol=1e-3)
        assert float((values / found.values[0] - 1).abs().min()) <= 1e-3
        assert abs(found.values[0] / 100.5 - 1) <= 2e-3
        found = lanczos(lambda v: a @ v, draws(100, seed=seed), tol=3e-4)
        assert abs(found.values[0] / 100.5 - 1) <= 1e-3


@pytest.mark.parametrize("stats", ["batch", "frozen"])
def test_ten_outputs_of_a_network_are_within_a_thousandth(stats):
    model = MLP(32, 10, width=128, depth=3, norm="batch").double()
    batch = draws(48, 32), torch.zeros(48, 10).double()
    with opened(model, losses.half_mse, batch, stats) as net:
        exact = torch.linalg.eigvalsh(dense_dual(net)).flip(0)
        assert float(exact[9]) > 0.6 * float(exact[0])
        assert float(exact[10]) < 0.8 * float(exact[9])
        product = net.gauss_newton()
        for seed in range(5):
            found = lanczos(product, draws(net.size, seed=seed), tol=1e-3)
            assert found.converged
            assert found.residuals[0] <= 1e-3
            assert abs(found.values[0] / float(exact[0]) - 1) <= 1e-3


def test_the_k_largest_come_with_their_vectors():
    a, vectors = with_spectrum(SPECTRA["decaying"])
    found = lanczos(lambda v: a @ v, draws(80), k=5, tol=1e-8)
    assert found.converged
    assert found.vectors.shape == (5, 80)
    for i in range(5):
        assert abs(found.values[i] - float(SPECTRA["decaying"][i])) <= 1e-8
        assert abs(abs(float(found.vectors[i] @ vectors[:, i])) - 1) <= 1e-8
        assert abs(found.residuals[i] - true_residuals(a, found, 5)[i]) <= 1e-12


def test_the_ritz_vectors_are_orthonormal_after_many_products():
    a, _ = with_spectrum(torch.cat([torch.tensor([1e6]).double(), torch.linspace(0, 1, 199).double()]))
    found = lanczos(lambda v: a @ v, draws(200), k=20, tol=1e-14, most=120)
    assert (found.vectors @ found.vectors.T - torch.eye(20)).abs().max() <= 1e-10
    assert sum(value > 2 for value in found.values) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_matrix(dtype):
    found = lanczos(torch.zeros_like, torch.ones(7, dtype=dtype), smallest=True)
    assert (found.values[0], found.values[-1], found.residuals[0], found.converged) == (0.0, 0.0, 0.0, True)


@pytest.mark.parametrize("value", [3.0, -3.0, 0.0])
def test_one_dimension(value):
    found = lanczos(lambda v: value * v, torch.tensor([2.0]), smallest=True)
    assert found.values == (value,)
    assert found.converged
    assert found.products == 1


@pytest.mark.parametrize("kind", ["an eigenvector", "all but the top"])
def test_a_start_without_the_top_eigenvector_still_finds_it(kind):
    a = torch.diag(torch.linspace(1, 10, 40).double())
    a[-1, -1] = 20
    start = torch.ones(40).double()
    if kind == "an eigenvector":
        start[1:] = 0
    start[-1] = 0
    found = lanczos(lambda v: a @ v, start, smallest=True)
    assert found.converged
    assert abs(found.values[0] - 20) <= 1e-2
    assert abs(found.values[-1] - 1) <= 1e-1


def test_float32_is_worked_in_and_good_to_its_rounding():
    values = SPECTRA["random"]
    a, _ = with_spectrum(values)
    a32 = a.float()
    found = lanczos(lambda v: a32 @ v, draws(60).float(), smallest=True, tol=1e-4)
    assert found.vectors.dtype == torch.float32
    assert found.converged
    assert abs(found.values[0] - 10) <= 1e-3
    assert abs(found.values[-1] + 3) <= 1e-3
    assert abs(found.residuals[0] - true_residuals(a32, found, 1)[0]) <= 1e-5


def test_float32_with_a_space_that_ends_early():
    values = torch.cat([torch.zeros(197), torch.tensor([1.0, 2.0, 7.0])]).double()
    a = with_spectrum(values)[0].float()
    found = lanczos(lambda v: a @ v, draws(200).float(), k=3, tol=1e-4)
    assert found.converged
    assert max(abs(x - y) for x, y in zip(found.values, (7, 2, 1), strict=False)) <= 1e-4


@pytest.mark.parametrize("seed", range(4))
def test_float32_of_one_value(seed):
    """Of a last layer's biases alone: what rounding leaves was gone on in, and 31 came out for 1."""
    found = lanczos(lambda v: 1.0 * v, draws(10, seed=seed).float())
    assert found.converged
    assert found.values[0] == pytest.approx(1, abs=1e-6)


def test_not_converged_is_said_with_its_residual():
    a, _ = with_spectrum(torch.linspace(0, 1, 300).double())
    found = lanczos(lambda v: a @ v, draws(300), tol=1e-6, most=10)
    assert not found.converged
    assert found.products == 10
    assert found.residuals[0] > 1e-6
    assert abs(found.residuals[0] - true_residuals(a, found, 1)[0]) <= 1e-10


def test_a_ritz_value_never_exceeds_the_largest_eigenvalue_and_lies_within_its_residual_of_one():
    a, _ = with_spectrum(SPECTRA["indefinite"])
    for most in range(1, 30):
        found = lanczos(lambda v: a @ v, draws(40), tol=0.0, most=most, least=1)
        scale = max(map(abs, found.values))
        assert found.values[0] <= 10 + 1e-10
        nearest = float((SPECTRA["indefinite"] - found.values[0]).abs().min())
        assert nearest <= found.residuals[0] * scale + 1e-10


def test_at_least_so_many_products_and_at_most_so_many():
    a, vectors = with_spectrum(SPECTRA["random"])
    asked = []
    lanczos(lambda v: asked.append(1) or a @ v, draws(60), tol=1.0, least=8)
    assert len(asked) == 8
    found = lanczos(lambda v: a @ v, vectors[:, -1], tol=1.0, least=3)
    assert found.products == 3


# Deterministic: the draws are fixed by a seed. Over other seeds a mean of 64 starts is off by more than 5 of its own
# standard errors about once in 200,000 (Student's t, 63 degrees of freedom).
STARTS, SIGMAS = 64, 5


@pytest.mark.parametrize("name", SPECTRA)
def test_moments_of_the_density(name):
    values = SPECTRA[name]
    a, _ = with_spectrum(values)
    found = density(lambda v: a @ v, draws(len(values)), starts=STARTS, steps=10)
    assert found.n == len(values)
    assert len(found.nodes) == STARTS
    size = float(values.abs().max())
    for weights in found.weights:
        assert abs(sum(weights) - 1) <= 1e-12
    for power in range(1, 5):
        mean, error = found.moment(power)
        exact = float((values**power).mean())
        assert abs(mean - exact) <= SIGMAS * error + 1e-12 * size**power, power
        assert error <= 0.5 * float((values**power).abs().mean()) + 1e-12 * size**power
    assert found.moment(0)[0] == pytest.approx(1, abs=1e-12)


def test_the_quadrature_is_exact_for_its_own_start():
    """z^T A^k z / z^T z for every k below twice the number of products."""
    a, _ = with_spectrum(SPECTRA["indefinite"])
    found = density(lambda v: a @ v, draws(40), starts=1, steps=6, seed=4)
    z = torch.randn(40, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for power in range(12):
        exact = float(z @ torch.linalg.matrix_power(a, power) @ z / (z @ z))
        assert found.moment(power)[0] == pytest.approx(exact, rel=1e-9)
        assert math.isnan(found.moment(power)[1])


def test_the_curve_integrates_to_one_and_has_the_two_bumps():
    values = torch.tensor([0.0] * 30 + [10.0] * 10).double()
    a, _ = with_spectrum(values)
    found = density(lambda v: a @ v, draws(40), starts=STARTS)
    at = torch.linspace(-5, 15, 4001).double()
    curve = found.curve(at, width=0.3)
    assert (curve >= 0).all()
    assert float(torch.trapezoid(curve, at)) == pytest.approx(1, abs=1e-9)
    right = float(torch.trapezoid(curve[at > 5], at[at > 5]))
    # A share of a chi-square: its standard deviation over one start is sqrt(2 p (1 - p) / (n + 2)).
    assert abs(right - 0.25) <= SIGMAS * (2 * 0.25 * 0.75 / 42 / STARTS) ** 0.5


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["random", "decaying", "ten near-equal", "indefinite"])
def test_the_trace_is_within_its_standard_error(name, seed):
    values = SPECTRA[name]
    a, _ = with_spectrum(values, seed)
    found, error = trace(lambda v: a @ v, draws(len(values)), products=60, seed=seed)
    # 5 standard errors of 20 draws: about once in 12,000 (Student's t, 19 degrees of freedom).
    assert abs(found - float(values.sum())) <= 5 * error
    assert 0 < error <= 0.5 * float(values.norm())


@pytest.mark.parametrize("name", ["rank 3", "degenerate"])
def test_the_trace_of_a_low_rank_is_exact(name):
    values = SPECTRA[name] - (1.0 if name == "degenerate" else 0.0)
    a, _ = with_spectrum(values)
    found, error = trace(lambda v: a @ v, draws(len(values)), products=36)
    assert found == pytest.approx(float(values.sum()), rel=1e-10)
    assert error <= 1e-10


def test_the_trace_of_zero_and_of_one_number():
    assert trace(torch.zeros_like, torch.ones(9)) == (0.0, 0.0)
    assert trace(lambda v: -3 * v, torch.ones(1))[0] == -3


def test_solvers_leave_the_generators_alone():
    a, _ = with_spectrum(SPECTRA["random"])
    before = torch.get_rng_state()
    lanczos(lambda v: a @ v, draws(60))
    density(lambda v: a @ v, draws(60), starts=2)
    trace(lambda v: a @ v, draws(60))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("scale", [1e-28, 1e20])
def test_products_whose_squares_leave_float32_are_not_taken_for_an_end(scale):
    """A power of two leaves the value as it is; a length of 0 or inf would end the search at its first vector."""
    a = torch.diag(torch.arange(1.0, 21.0))
    scale = 2.0 ** round(math.log2(scale))
    usual, found = (lanczos(lambda v, by=by: by * (a @ v), torch.ones(20)) for by in (1.0, scale))
    assert found.converged
    assert found.products == usual.products > 1
    assert found.values[0] == usual.values[0] * scale
