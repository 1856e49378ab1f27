"""The prediction put to the test: near a stationary point, steps below eta* settle and steps above it blow up."""

import copy

import pytest
import torch
from torch import Tensor, nn

from normscope import losses, models
from normscope.curvature import Network, lanczos
from normscope.isolation.lending import untouched
from normscope.stability import momentum_limit

NETWORKS = {
    "mlp": (lambda norm: models.MLP(6, 2, width=12, depth=3, norm=norm, init="glorot"), (16, 6)),
    "cnn": (lambda norm: models.CNN(1, 15, 2, channels=(4, 6, 8), norm=norm, init="glorot"), (8, 1, 15, 15)),
    "resnet": (lambda norm: models.PreActResNet18(1, 2, width=2, norm=norm), (8, 1, 8, 8)),
}


def _data(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x, torch.randn(shape[0], 2, generator=generator, dtype=torch.float64)


def _stationary(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        adam.zero_grad()
        losses.half_mse(model(x), y).backward()
        adam.step()
    newton = torch.optim.LBFGS(
        model.parameters(), lr=1.0, max_iter=2000, history_size=50, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        newton.zero_grad()
        loss = losses.half_mse(model(x), y)
        loss.backward()
        return float(loss.detach())

    newton.step(closure)
    return model


def _excess(model: nn.Module, x: Tensor, y: Tensor, kick: Tensor, lr: float, momentum: float) -> list[float]:
    """Loss over the stationary one, at each of 60 steps from the kick on."""
    model = copy.deepcopy(model)
    base = float(losses.half_mse(model(x), y).detach())
    with torch.no_grad():
        for p, part in zip(model.parameters(), kick.split([p.numel() for p in model.parameters()]), strict=True):
            p += part.view(p.shape)
    sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    found = []
    for _ in range(60):
        sgd.zero_grad()
        loss = losses.half_mse(model(x), y)
        loss.backward()
        sgd.step()
        found.append(float(loss.detach()) - base)
    return found


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("name", NETWORKS)
def test_eta_star_divides_settling_from_blowing_up(name: str, norm: str) -> None:
    make, shape = NETWORKS[name]
    x, y = _data(shape)
    model = _stationary(make(norm).double(), x, y)
    with untouched(model) as lent:
        network = Network(lent, model, losses.half_mse, (x, y), stats="batch")
        assert float(network.gradient().norm()) < 1e-3
        start = torch.randn(network.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        top = lanczos(network.hessian(), start, tol=1e-8, most=200)
    assert top.converged
    kick = 1e-4 * top.vectors[0]
    for momentum in (0.0, 0.9):
        eta = momentum_limit(momentum).factor / top.values[0]
        for share in (0.5, 0.9, 1.1, 3.0):
            excess = _excess(model, x, y, kick, share * eta, momentum)
            if share < 1:
                assert excess[-1] < excess[0]
            else:
                assert not max(excess) < 100 * excess[0]
