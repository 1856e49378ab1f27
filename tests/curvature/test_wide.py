"""The wide networks of the mean-field analysis, and the output space in which their largest eigenvalue lives."""

import math

import pytest
import torch
from torch import Tensor, nn
from twins import NORMS, OUTPUTS, data, dense, dense_dual, network, opened

from normscope import losses
from normscope.curvature import Solver, measure
from normscope.curvature.operators.fisher_by_outputs import dual, mean_mode_of
from normscope.models import CNN, MLP


# Not 0: a model's first weights come from its own seed by the same draws.
def draws(*shape: int, seed: int = 100, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def weights_and_biases(model: nn.Module):
    """Chooses all but gamma and beta."""
    layers = {name for name, module in model.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))}
    return lambda name, parameter: name.rpartition(".")[0] in layers


def _look(model: nn.Module, shape: tuple[int, ...], d_out: int, *compare: str):
    batch = draws(*shape, dtype=torch.float32), torch.zeros(shape[0], d_out)
    chosen = weights_and_biases(model)
    found = measure(model, losses.half_mse, batch, parameters=chosen, compare=compare, solver=Solver(tol=1e-3))
    assert found.converged
    return found.by_statistics


@pytest.mark.slow
@pytest.mark.parametrize(("gamma", "trained", "frozen"), [(1.0, (155, 167), (400, 425)), (0.1, (2.4, 2.8), (6.4, 6.8))])
def test_the_wide_mlp(gamma, trained, frozen):
    """As trained N gamma^2 / 2 pi = 159.2 gamma^2 from the last layer, plus a rest that does not shrink with gamma."""
    found = _look(MLP(norm="batch", gamma=gamma), (512, 784), 10, "frozen")
    assert trained[0] <= found["batch"] <= trained[1]
    assert frozen[0] <= found["frozen"] <= frozen[1]


@pytest.mark.slow
def test_the_wide_mlp_with_one_output():
    """No larger: ten outputs have ten near-equal eigenvalues and the largest of them. Over networks 358 to 382."""
    found = [_look(MLP(784, 1, norm="batch", seed=seed), (512, 784), 1, "frozen")["frozen"] for seed in range(3)]
    assert all(355 <= value <= 385 for value in found)
    assert 361 <= sum(found) / 3 <= 375


@pytest.mark.slow
def test_the_cnn():
    """C_3 |K_3| gamma^2 / 2 pi = 128.9 from the last layer."""
    assert 128 <= _look(CNN(norm="batch"), (256, 3, 32, 32), 10)["batch"] <= 138


def test_a_narrower_mlp_as_trained_and_frozen():
    """N = 200: N / 2 pi = 31.8 as trained; (N / 2 pi) (1 + r + r^2) = 72.3, r = pi / (2 (pi - 1)), frozen."""
    found = _look(MLP(128, 1, width=200, norm="batch"), (256, 128), 1, "frozen")
    r = math.pi / (2 * (math.pi - 1))
    assert found["batch"] == pytest.approx(200 / (2 * math.pi), rel=0.15)
    assert found["frozen"] == pytest.approx(200 / (2 * math.pi) * (1 + r + r**2), rel=0.15)


@pytest.mark.parametrize("stats", ["batch", "frozen", "running"])
@pytest.mark.parametrize("norm", NORMS)
def test_the_dual_has_the_spectrum_of_the_fisher_matrix(norm, stats):
    model, (x, y, _) = network("mlp", norm), data("mlp")
    with opened(model, losses.half_mse, (x, y), stats) as net:
        primal = torch.linalg.eigvalsh(dense(net.gauss_newton(), net.size)).flip(0)[: y.numel()]
        whole = dense_dual(net)
        product, shape = dual(net)
        assert shape == y.shape
        free = dense(product, y.numel())
    assert (whole - free).abs().max() <= 1e-10 * whole.abs().max()
    assert (torch.linalg.eigvalsh(whole).flip(0) - primal).abs().max() <= 1e-10 * primal[0]


@pytest.mark.parametrize("stats", ["batch", "frozen"])
@pytest.mark.parametrize("dense_up_to", [100, 0])
def test_bounds_and_statistics_are_those_of_the_definition(stats, dense_up_to):
    model, (x, y, _) = network("mlp", "batch"), data("mlp")
    m = len(x)
    with opened(model, losses.half_mse, (x, y), stats) as net:
        vjp = net.vjp(net.output())
        rows = torch.stack([vjp(unit.view(m, OUTPUTS)) for unit in torch.eye(m * OUTPUTS).double()])
        found = mean_mode_of(net, Solver(tol=1e-9), dense=dense_up_to)
    g = rows.view(m, OUTPUTS, -1).transpose(0, 1)
    inner = g @ g.transpose(1, 2)
    v = inner.sum((1, 2)) / m**2
    u = (inner.sum((1, 2)) - inner.diagonal(dim1=1, dim2=2).sum(1)) / (m * (m - 1))
    trace = float(rows.square().sum()) / m
    values, vectors = torch.linalg.eigh(rows @ rows.T / m)
    assert found.converged
    assert found.lambda_max == pytest.approx(float(values[-1]), rel=1e-8)
    assert found.v_statistic == pytest.approx(float(v.max()), rel=1e-10)
    top = vectors[:, -1].view(m, OUTPUTS)
    assert found.share == pytest.approx(float(top.mean(0).square().sum() * m), abs=1e-6)
    if dense_up_to:
        assert found.u_statistic == pytest.approx(float(u.max()), rel=1e-10)
        assert found.upper == pytest.approx(trace, rel=1e-10)
        assert found.upper_error == 0
    else:
        # 16 random signs, fixed by a seed; 5 standard errors are missed about once in 6,000 (Student's t).
        assert abs(found.upper - trace) <= 5 * found.upper_error
    assert found.u_statistic < found.v_statistic <= found.lambda_max * (1 + 1e-9)
    assert found.lambda_max <= found.upper + 5 * found.upper_error


def test_the_two_statistics_differ_by_one_over_m():
    gaps = []
    sizes = (16, 32, 64, 128)
    for m in sizes:
        model = MLP(16, 1, width=32, depth=3, norm="batch").double()
        with opened(model, losses.half_mse, (draws(m, 16), torch.zeros(m, 1).double()), "frozen") as net:
            found = mean_mode_of(net, Solver(), dense=200)
        gaps.append(found.v_statistic - found.u_statistic)
        assert gaps[-1] == pytest.approx((found.upper - found.v_statistic) / (m - 1), rel=1e-9)
    slope = math.log(gaps[-1] / gaps[0]) / math.log(sizes[-1] / sizes[0])
    assert -1.25 <= slope <= -0.75


def test_the_mean_mode_is_the_top_one_and_its_hidden_part_goes_with_the_statistics():
    """ReLU: the top eigenvector is constant over samples; through the statistics V keeps the last layer's part."""
    model = MLP(64, 1, width=100, norm="batch").double()
    found = {}
    for stats in ("batch", "frozen"):
        with opened(model, losses.half_mse, (draws(96, 64), torch.zeros(96, 1).double()), stats) as net:
            found[stats] = mean_mode_of(net, Solver(tol=1e-6))
    last = 100 / (2 * math.pi)
    r = math.pi / (2 * (math.pi - 1))
    assert found["batch"].share > 0.9
    assert found["frozen"].share > 0.9
    assert found["batch"].v_statistic == pytest.approx(last + 1, rel=0.2)
    assert found["frozen"].v_statistic == pytest.approx(last * (1 + r + r**2), rel=0.3)


def test_an_odd_activation_has_no_mean_mode_as_trained():
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 1, bias=False)).double()
    with opened(model, losses.half_mse, (draws(64, 32), torch.zeros(64, 1).double())) as net:
        found = mean_mode_of(net, Solver())
    assert found.share < 0.2
    assert found.v_statistic < 0.3 * found.lambda_max
