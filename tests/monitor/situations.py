"""Moments of training runs, right before the optimizer's step, and every measurement there beside its slow twin."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import reference
from normscope.losses import half_mse
from normscope.models import DLN, MLP, VGG, PreActResNet18
from normscope.monitor import Monitor, Record
from normscope.norms import make_norm

# A measurement and its twin make the same passes in float64, in another order of summation, with another copy of the
# parameters: both are off by some 1e-16 of the terms they add up, which a difference of gradients can magnify by their
# ratio. 1e-9 leaves room for a millionfold cancellation and none for a wrong term.
RTOL = 1e-9


class Weird(nn.Module):
    """Everything that breaks a tracer: sharing, repetition, functions in place, random draws, loose parameters."""

    def __init__(self, norm: str) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)  # registered first, run last
        self.first = nn.Linear(6, 8)
        self.norm = make_norm(norm, 8, dim=1)
        self.act = nn.ReLU(inplace=True)
        self.twice = nn.Linear(8, 8)
        self.one = nn.Linear(8, 8)
        self.other = nn.Linear(8, 8)
        self.other.weight = self.one.weight
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.dropout = nn.Dropout(0.2)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.unused = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x))
        h.mul_(1.1)
        h = self.act(h)
        for _ in range(2):
            h = torch.tanh(self.twice(h))
        out = self.one(self.dropout(h))
        out += h
        out = F.dropout(self.other(F.relu(out)), 0.3, self.training) * self.scale
        out = F.relu(self.frozen(out), inplace=True)
        y: Tensor = self.head(out + h)
        return y


class Sequences(nn.Module):
    """An LSTM, then a transformer layer with attention and dropout."""

    def __init__(self, norm: str = "layer") -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.lstm(self.embed(x))
        y: Tensor = self.head(self.encoder(h).mean(dim=1))
        return y


class Checkpointed(nn.Module):
    """Blocks whose activations are made again in the backward pass, or not."""

    def __init__(self, norm: str, use: bool, reentrant: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), make_norm(norm, 8, dim=1), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 8))
            for _ in range(2)
        )
        self.head = nn.Linear(8, 3)
        self.use, self.reentrant = use, reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=self.reentrant) if self.use else block(h)
        y: Tensor = self.head(h)
        return y


@dataclass
class Situation:
    """A model after backward, before the optimizer's step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    x: Tensor
    y: Tensor

    def loss(self, model: nn.Module) -> Tensor:
        return self.loss_fn(model(self.x), self.y)

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.loss(self.model).backward()

    def snapshot(self, *measure: Any) -> Record:
        monitor = Monitor(self.model, self.loss_fn, every=1, measure=measure, budget=None, on_error="raise")
        record = monitor.step(self.x, self.y, self.optimizer)
        assert record is not None
        return record


def _images(n: int) -> Tensor:
    return torch.randn(n, 3, 32, 32, dtype=torch.float64)


NETWORKS: dict[str, tuple[Callable[[str], nn.Module], Callable[[], Tensor], Callable[[], Tensor]]] = {
    "mlp": (
        lambda norm: MLP(6, 3, width=8, depth=4, norm=norm),
        lambda: torch.randn(12, 6, dtype=torch.float64),
        lambda: torch.randn(12, 3, dtype=torch.float64),
    ),
    "vgg11": (lambda norm: VGG(11, width=1 / 16, norm=norm), lambda: _images(4), lambda: torch.randint(10, (4,))),
    "resnet": (lambda norm: PreActResNet18(width=4, norm=norm), lambda: _images(2), lambda: torch.randint(10, (2,))),
    "dln": (
        lambda norm: DLN(k=5, width=6, norm=norm),
        lambda: torch.randn(16, 6, dtype=torch.float64),
        lambda: torch.randn(16, 6, dtype=torch.float64),
    ),
    "weird": (
        Weird,
        lambda: torch.randn(12, 6, dtype=torch.float64),
        lambda: torch.randn(12, 3, dtype=torch.float64),
    ),
    "sequences": (
        Sequences,
        lambda: torch.randn(5, 7, 4, dtype=torch.float64),
        lambda: torch.randn(5, 3, dtype=torch.float64),
    ),
}


def _two_groups(model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    return torch.optim.SGD([{"params": parameters[::2], "lr": 0.03}, {"params": parameters[1::2], "lr": 0.004}])


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.01),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.003),
    "groups": _two_groups,
}


def situation(network: str, norm: str, optimizer: str, *, steps: int = 2) -> Situation:
    """After a few steps, so that momenta, moments and running statistics are not at their start."""
    build, inputs, targets = NETWORKS[network]
    torch.manual_seed(3)
    model = build(norm).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))  # no zero biases, no equal gammas
    found = Situation(model, OPTIMIZERS[optimizer](model), loss_for(network), inputs(), targets())
    for _ in range(steps):
        found.backward()
        found.optimizer.step()
        found.x, found.y = inputs(), targets()
    found.backward()
    return found


def loss_for(network: str) -> Callable[[Tensor, Tensor], Tensor]:
    return nn.CrossEntropyLoss() if network in ("vgg11", "resnet") else half_mse


def same(found: Sequence[float], wanted: Sequence[float], *, scale: float = 0.0, rtol: float = RTOL) -> None:
    """Equal up to rtol of the value, or of `scale`, the size of the terms that it is a difference of."""
    np.testing.assert_allclose(np.array(found), np.array(wanted), rtol=rtol, atol=1e-4 * rtol * scale + 1e-300)


def compare_untouched(s: Situation, *measure: Any) -> None:
    """A snapshot leaves parameters, gradients, buffers, modes, optimizer and generators to the bit and in place."""

    def state() -> list[tuple[str, int, int, Any]]:
        named = [*s.model.named_parameters(), *s.model.named_buffers()]
        kept: list[tuple[str, int, int, Any]] = [(n, id(t), t._version, t.detach().clone()) for n, t in named]
        kept += [
            (n, id(p.grad), 0, p.grad.clone().to_dense()) for n, p in s.model.named_parameters() if p.grad is not None
        ]
        for p, values in s.optimizer.state.items():
            kept += [(n, id(v), id(p), v.clone()) for n, v in values.items() if isinstance(v, Tensor)]
        kept += [(n, id(m), int(m.training), torch.zeros(())) for n, m in s.model.named_modules()]
        return [*kept, ("generator", 0, 0, torch.get_rng_state())]

    before = state()
    s.snapshot(*measure)
    after = state()
    assert [row[:3] for row in after] == [row[:3] for row in before]
    for (name, *_, now), (*_, then) in zip(after, before, strict=True):
        assert torch.equal(now, then), name


def compare_landscape(s: Situation, found: Any) -> None:
    wanted: Any = reference.landscape(s.model, s.optimizer, s.loss, found.factors)
    same([found.loss], [wanted["loss"]])
    same([found.grad_norm], [wanted["grad_norm"]])
    same(found.losses, wanted["losses"])
    same(found.changes, wanted["changes"], scale=wanted["grad_norm"])
    same(found.cosines, wanted["cosines"])
    same([found.beta], [wanted["beta"]])
    same(found.betas, wanted["betas"])


def compare_shift(s: Situation, found: Any) -> None:
    wanted = reference.covariate_shift(s.model, s.optimizer, s.loss, found.update)
    assert list(found.layers) == list(wanted)
    shifts, cosines, norms = zip(*wanted.values(), strict=True)
    same(found.grad_norms, norms)
    same(found.shifts, shifts, scale=min(norms))
    same(found.cosines, cosines)


def compare_moments(s: Situation, found: Any) -> dict[str, tuple[list[float], list[float]]]:
    wanted = reference.activation_moments(s.model, s.optimizer, s.loss)
    assert list(found.layers) == list(wanted)
    size = [math.fsum(map(abs, mean)) / len(mean) for mean, _ in wanted.values()]
    for at, (mean, var) in enumerate(wanted.values()):
        same([found.means[at]], [math.fsum(mean) / len(mean)], scale=size[at] + math.sqrt(max(var)))
        same([found.variances[at]], [math.fsum(var) / len(var)], scale=max(m * m for m in mean))
    return wanted


def compare_changes(
    found: Any,
    now: dict[str, tuple[list[float], list[float]]],
    before: dict[str, tuple[list[float], list[float]]] | None,
    first: dict[str, tuple[list[float], list[float]]] | None,
) -> None:
    """`found` is of the moment `now`; None where there is nothing to compare with."""
    for kind, other in (("changes", before), ("drifts", first)):
        for at, layer in enumerate(now):
            values = [getattr(found, f"mean_{kind}")[at], getattr(found, f"variance_{kind}")[at]]
            if other is None:
                assert all(math.isnan(v) for v in values), (kind, layer, values)
                continue
            mean, var = reference.moment_changes(now[layer], other[layer])
            # Where nothing moved (a gamma = 1 BatchNorm's variance) both sides are rounding errors of the moment.
            same(values[:1], [mean], scale=max(map(abs, now[layer][0])) + math.sqrt(max(now[layer][1])))
            same(values[1:], [var], scale=max(now[layer][1]) + max(m * m for m in now[layer][0]))


def compare_health(s: Situation, found: Any) -> None:
    norms, depth = reference.norm_health(s.model, s.optimizer, s.loss)
    assert list(found.layers) == list(norms)
    for at, (gap, ratio, dead) in enumerate(norms.values()):
        same([found.mean_gaps[at]], [gap])
        same([found.variance_ratios[at]], [ratio])
        same([found.dead[at]], [dead])
    assert list(found.depth) == list(depth)
    same(found.grad_norms, list(depth.values()))


def compare_critical(s: Situation, found: Any, *, rtol: float) -> None:
    """The search stops after eight passes: its bracket must hold the twin, its answer be within rtol."""
    stop = 1.5 * found.high if math.isfinite(found.high) else 4 * found.low
    wanted = reference.critical_step(s.model, s.optimizer, s.loss, found.update, stop)
    assert found.low * (1 - 1e-9) <= wanted <= found.high * (1 + 1e-9)
    same([found.step], [wanted], rtol=rtol)
