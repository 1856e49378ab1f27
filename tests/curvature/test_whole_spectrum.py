"""The whole spectrum and the mean mode of a network, beside the dense matrix."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope.curvature import Network, Solver, mean_mode, spectrum
from normscope.isolation.lending import untouched
from normscope.losses import half_mse
from normscope.models import MLP


def _small():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()
    x = torch.randn(20, 5, dtype=torch.float64)
    model(x)
    return model, (x, torch.randint(3, (20,)))


def _eigenvalues(model, loss_fn, batch, matrix, stats):
    with untouched(model) as lent:
        network = Network(lent, model, loss_fn, batch, stats=stats)
        product = network.product(matrix)
        dense = torch.stack([product(row) for row in torch.eye(network.size, dtype=torch.float64)])
    return torch.linalg.eigvalsh((dense + dense.T) / 2)


@pytest.mark.parametrize("matrix", ["ggn", "hessian", "fisher"])
@pytest.mark.parametrize(
    "stats", ["batch", pytest.param("frozen", marks=pytest.mark.slow), pytest.param("running", marks=pytest.mark.slow)]
)
def test_moments_and_trace_are_those_of_the_dense_matrix(matrix, stats):
    model, batch = _small()
    before = copy.deepcopy(model.state_dict())
    found = spectrum(model, F.cross_entropy, batch, matrix=matrix, stats=stats, starts=60, steps=30)
    values = _eigenvalues(model, F.cross_entropy, batch, matrix, stats)
    assert (found.matrix, found.stats, found.density.n) == (matrix, stats, len(values))
    assert abs(found.trace - float(values.sum())) <= 5 * found.trace_error + 1e-9
    for power in (1, 2):
        mean, error = found.density.moment(power)
        assert abs(mean - float(values.pow(power).mean())) <= 4 * error + 1e-12
    top = max(node for nodes in found.density.nodes for node in nodes)
    assert top == pytest.approx(float(values[-1]), rel=1e-6)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_curve_is_a_density():
    model, batch = _small()
    found = spectrum(model, F.cross_entropy, batch)
    at = torch.linspace(-1.0, 2.0, 3001)
    assert float(found.density.curve(at, width=0.02).sum() * 0.001) == pytest.approx(1.0, abs=1e-3)


def test_the_mean_mode_tops_a_relu_network_and_is_absent_from_an_odd_one():
    x = torch.randn(64, 20, generator=torch.Generator().manual_seed(1))
    y = torch.zeros(64, 3)
    model = MLP(20, 3, width=200, depth=3, norm="batch", seed=0)
    found = mean_mode(model, (x, y), solver=Solver(tol=1e-5))
    assert found.converged
    assert found.share > 0.8
    assert found.u_statistic < found.v_statistic <= found.lambda_max * (1 + 1e-4) <= found.upper + 5 * found.upper_error
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.Tanh())
    assert mean_mode(model, (x, y)).share < 0.2


def test_wrong_input_is_one_message():
    model, (x, y) = _small()
    with pytest.raises(ValueError, match="stats"):
        spectrum(model, half_mse, (x, y), stats="eval")
    with pytest.raises(ValueError, match=r"a batch is a pair \(x, y\); got Tensor"):
        spectrum(model, half_mse, x)
