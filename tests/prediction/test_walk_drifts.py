"""Tangents and drifts: theta_xy, and its derivative with respect to the inputs' kernel, against differences."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from networks import Dense, preact_resnet, vgg_like, with_activation
from torch import nn

import normscope as ns
from normscope.prediction.graph.evaluate import walk_through
from normscope.prediction.kernels.field import Field
from normscope.prediction.kernels.inputs import input_field
from normscope.prediction.walk import Walk
from normscope.theory import place_lengths
from normscope.theory.maxima import agreement
from normscope.theory.normalizing import Normalized, normalize
from normscope.theory.site_pairs import Sites, TorusSites

M = 8


def pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 40, 3, padding=1), nn.BatchNorm2d(40), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Dropout(0.2),
        nn.Conv2d(40, 40, 3, 2), nn.GroupNorm(1, 40), nn.GELU(), nn.AvgPool2d(2, 1, 1), nn.Flatten(),
        nn.LazyLinear(5),
    )  # fmt: skip


def evaluated() -> nn.Module:
    net = nn.Sequential(
        nn.Linear(20, 50), nn.BatchNorm1d(50), nn.Tanh(), nn.Linear(50, 50), nn.LayerNorm(50), nn.SiLU()
    )
    net.append(nn.Linear(50, 5))
    return net.eval()


def made(net: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Lazy layers have their weights after one forward."""
    torch.manual_seed(0)
    with torch.no_grad():
        net(torch.randn(4, *shape))
    return net


NETWORKS = {
    "mlp": lambda: (with_activation(ns.models.MLP(20, 5, width=40, norm="batch"), nn.Tanh), (20,)),
    "without normalizer": lambda: (ns.models.CNN(3, 12, 5, channels=(30, 30), norm="none"), (3, 12, 12)),
    "cnn": lambda: (ns.models.CNN(3, 12, 5, channels=(30, 30), padding=1, norm="batch"), (3, 12, 12)),
    "vgg": lambda: (vgg_like(0, width=30), (3, 8, 8)),
    "residual": lambda: (preact_resnet(0, width=30), (3, 8, 8)),
    "concatenation": lambda: (Dense(), (3, 6, 6)),
    "pools": lambda: (made(pooled(), (3, 13, 13)), (3, 13, 13)),
    "running statistics": lambda: (evaluated(), (20,)),
}


class Held:
    """Statistics of the batch, places' lengths, and those that maxima choose, as they were in the first walk."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.kept: list[tuple[object, torch.Tensor]] = []
        self.calls: int | None = None
        patch.setattr("normscope.prediction.rules.batch_norm.normalize", self.normalize)
        patch.setattr("normscope.prediction.rules.max_pooling.agreement", self.agreement)
        for module, name in (("weighted_sums", "tied"), ("weighted_sums", "variance"), ("joining", "variance")):
            patch.setattr(f"normscope.prediction.rules.{module}.{name}", self.holding(getattr(place_lengths, name)))

    def _of(self, made: object, kernel: torch.Tensor) -> tuple[object, torch.Tensor]:
        if self.calls is None:
            self.kept.append((made, kernel))
            return self.kept[-1]
        self.calls += 1
        return self.kept[self.calls - 1]

    def normalize(self, sites: Sites, kernel: torch.Tensor, eps: float, *spread: float) -> Normalized:
        first, then = self._of(normalize(sites, kernel, eps, *spread), kernel)
        return replace(first, kernel=first.kernel + (kernel - then) / first.variance)

    def holding(self, function: Callable[..., float]) -> Callable[..., float]:
        return lambda of, kernel: self._of(function(of, kernel), kernel)[0]

    def agreement(self, sites: Sites, covariance: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        return self._of(agreement(sites, covariance, own), covariance)[0]


def walked(net: nn.Module, x: Field, trained: set[int]) -> tuple[Walk, Field]:
    walk = Walk(M, False, lambda tensor: id(tensor) in trained)
    return walk, walk_through(net, x, walk)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("some", [False, True], ids=["all trained", "some trained"])
def test_drift_is_the_derivative_of_theta(name, some, monkeypatch):
    net, shape = NETWORKS[name]()
    held = Held(monkeypatch)
    trained = {id(p) for i, p in enumerate(net.parameters()) if not some or i % 3}
    x, _ = input_field(shape, M, None, sum(p.ndim > 1 for p in net.parameters()))
    (part,) = x.parts
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(part.kernel[1].shape, generator=generator, dtype=torch.float64)
    by_offset = isinstance(x.sites, TorusSites)
    # A kernel of real images is the same from either end.
    direction = direction + direction.flip((-2, -1)).roll((1, 1), (-2, -1)) if by_offset else direction

    def theta(step: float) -> float:
        moved = part.kernel.clone()
        moved[1] += step * direction
        held.calls = 0
        start = replace(x, parts=(replace(part, kernel=moved),))
        return float(walked(net, start, trained)[1].parts[0].tangent)

    walk, out = walked(net, x, trained)
    arrived = walk.send_back(out, torch.ones(2, 2, 1, 1, dtype=torch.float64), x)
    ((_, drift),) = arrived.held_gradient_and_drift
    found = float((drift * direction).sum()) * (x.sites.count if by_offset else 1)
    assert float(out.parts[0].tangent) == pytest.approx(theta(0.0), rel=1e-15)
    step = 1e-5
    assert found == pytest.approx((theta(step) - theta(-step)) / (2 * step), rel=1e-5)
