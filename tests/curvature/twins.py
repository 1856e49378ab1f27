"""A network and its slow twin: the same function with every normalizer written out in elementary operations."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope import losses, norms
from normscope.curvature import Network
from normscope.isolation.lending import untouched

OUTPUTS = 2
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "half_mse": losses.half_mse,
    "half_sse": losses.half_sse,
    "mse": nn.MSELoss(),
    "cross_entropy": F.cross_entropy,
    "bce": F.binary_cross_entropy_with_logits,
    "huber": F.huber_loss,
    "l1": F.l1_loss,
}
NORMS = ("none", "batch", "torch", "noisy", "l1", "l2", "linf", "layer", "group", "rms")
NETS = ("mlp", "cnn", "deep")


def _normalizer(norm: str, channels: int, dim: int) -> nn.Module:
    if norm == "torch":
        return (nn.BatchNorm1d if dim == 1 else nn.BatchNorm2d)(channels)
    # Of two channels a group's outputs are nearly signs, which differences do not resolve at a small eps.
    options = {"noisy": {"seed": 3}, "group": {"eps": 0.1}}.get(norm, {})
    return norms.make_norm(norm, channels, dim=dim, **options)


def network(net: str, norm: str) -> nn.Module:
    """A small network in float64, no parameter at its initial value; running statistics unlike the batch's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        if net == "mlp":
            layers = [nn.Linear(2, 4), _normalizer(norm, 4, 1), nn.Tanh(), nn.Linear(4, OUTPUTS)]
        elif net == "deep":
            layers = [nn.Linear(2, 4), _normalizer(norm, 4, 1), nn.Tanh(), nn.Linear(4, 4), _normalizer(norm, 4, 1)]
            layers += [nn.ReLU(), nn.Linear(4, OUTPUTS)]
        else:
            layers = [nn.Conv2d(1, 4, 2, stride=2), _normalizer(norm, 4, 2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()]
            layers += [nn.Linear(4, OUTPUTS)]
        model = nn.Sequential(*layers).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
            for name, buffer in model.named_buffers():
                if name.endswith(("running_mean", "running_var", "running_norm")):
                    buffer += 0.5 * torch.rand_like(buffer)
    return model


def data(net: str) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets in (0, 1) that every loss takes, and class labels."""
    generator = torch.Generator().manual_seed(8)
    x = torch.randn((5, 1, 4, 4) if net == "cnn" else (6, 2), generator=generator, dtype=torch.float64)
    y = torch.rand(len(x), OUTPUTS, generator=generator, dtype=torch.float64)
    return x, y, torch.randint(OUTPUTS, (len(x),), generator=generator)


class _Written(nn.Module):
    """A normalizer as the sources define it; `held` are statistics to use in place of its own."""

    def __init__(self, layer: nn.Module, norm: str, running: bool) -> None:
        super().__init__()
        self.norm, self.eps = norm, getattr(layer, "eps", 0.0)
        self.weight, self.bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
        self.groups = getattr(layer, "num_groups", 1)
        self.noise = layer.noise if norm == "noisy" and not running else None
        self.held: tuple[Tensor, Tensor] | None = None
        self.seen: tuple[Tensor, Tensor] | None = None
        if running and norm in ("batch", "torch", "noisy"):
            self.held = layer.running_mean.clone(), (layer.running_var + self.eps).sqrt()
        elif running and norm in ("l1", "l2", "linf"):
            self.held = layer.running_mean.clone(), layer.running_norm + self.eps

    def forward(self, x: Tensor) -> Tensor:
        if self.norm == "none":
            return x
        y = self._over_samples(x) if self.norm in ("layer", "group", "rms") else self._over_the_batch(x)
        shape = (1, -1) + (1,) * (x.ndim - 2)
        y = y * self.weight.view(shape) + (0 if self.bias is None else self.bias.view(shape))
        if self.noise is not None:
            with torch.no_grad():
                shift = copy.deepcopy(self.noise)(torch.zeros_like(y))
                scale = copy.deepcopy(self.noise)(torch.ones_like(y)) - shift
            y = scale * y + shift
        return y

    def _over_samples(self, x: Tensor) -> Tensor:
        groups = x.reshape(len(x), self.groups, -1)
        mean = 0 if self.norm == "rms" else groups.sum(2, keepdim=True) / groups.shape[2]
        size = ((groups - mean) ** 2).sum(2, keepdim=True) / groups.shape[2]
        return ((groups - mean) / (size + self.eps) ** 0.5).reshape(x.shape)

    def _over_the_batch(self, x: Tensor) -> Tensor:
        rows = x.transpose(0, 1).reshape(x.shape[1], -1)
        if self.held is None:
            mean = rows.sum(1) / rows.shape[1]
            if self.norm in ("batch", "torch", "noisy"):
                scale = (((rows - mean[:, None]) ** 2).sum(1) / rows.shape[1] + self.eps) ** 0.5
            else:
                p = {"l1": 1, "l2": 2, "linf": math.inf}[self.norm]
                length = torch.linalg.vector_norm(rows, p, dim=1)
                scale = length / {1: rows.shape[1], 2: rows.shape[1] ** 0.5, math.inf: 1}[p] + self.eps
            self.seen = mean.detach(), scale.detach()
        else:
            mean, scale = self.held
        shape = (1, -1) + (1,) * (x.ndim - 2)
        return (x - mean.view(shape)) / scale.view(shape)


class Twin:
    """The outputs and loss gradients of a network's slow twin, as functions of one vector of parameters."""

    def __init__(self, model: nn.Module, norm: str, stats: str, x: Tensor) -> None:
        model = copy.deepcopy(model)
        written = [
            _Written(layer, norm, stats == "running") if _is_normalizer(layer) else layer for layer in model.children()
        ]
        self._model, self._x = nn.Sequential(*written), x
        self._parameters = list(model.parameters())
        self.theta = torch.cat([p.detach().reshape(-1) for p in self._parameters]).numpy()
        if stats == "frozen":
            self.outputs(self.theta)
            for layer in written:
                if isinstance(layer, _Written):
                    layer.held = layer.seen

    def _at(self, theta: np.ndarray) -> Tensor:
        with torch.no_grad():
            parts = torch.from_numpy(theta).split([p.numel() for p in self._parameters])
            for parameter, part in zip(self._parameters, parts, strict=True):
                parameter.copy_(part.view(parameter.shape))
        return self._model(self._x)

    def outputs(self, theta: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self._at(theta).reshape(-1).numpy()

    def gradients(self, theta: np.ndarray, targets: dict[str, Tensor]) -> np.ndarray:
        """One row a loss."""
        f = self._at(theta)
        z = f.detach().requires_grad_()
        slopes = torch.stack([torch.autograd.grad(LOSSES[name](z, y), z)[0] for name, y in targets.items()])
        found = torch.autograd.grad(f, self._parameters, slopes, is_grads_batched=True)
        return torch.cat([g.reshape(len(targets), -1) for g in found], 1).numpy()


def _is_normalizer(layer: nn.Module) -> bool:
    kinds = (nn.Linear, nn.Conv2d, nn.Tanh, nn.ReLU, nn.AvgPool2d, nn.Flatten)
    return not isinstance(layer, kinds)


@contextmanager
def opened(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], batch: tuple[Tensor, Tensor], stats: str = "batch"
) -> Iterator[Network]:
    with untouched(model) as lent:
        yield Network(lent, model, loss, batch, stats=stats)


def dense(product: Callable[[Tensor], Tensor], n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The matrix, one column a product."""
    return torch.stack([product(unit) for unit in torch.eye(n, dtype=dtype)], 1)


def dense_dual(network: Network) -> Tensor:
    """F itself, from one backward pass for each sample and output."""
    output = network.output()
    vjp = network.vjp(output)
    units = torch.eye(output.numel(), dtype=output.dtype, device=output.device)
    rows = torch.stack([vjp(unit.view(output.shape)) for unit in units])
    return rows @ rows.T / len(output)
