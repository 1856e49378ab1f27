"""Signals that grow or fade along depth at the start."""

from collections.abc import Callable

import torch
from torch import nn

from faults.case import Case
from faults.data import accuracy, chunks, digits, shuffled
from faults.held_out.networks import Residual, no_norm
from normscope import Setup


def _setup(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, steps: int) -> Setup:
    data = digits()
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=32, steps=steps, seed=seed),
        optimizer,
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=steps,
    )


def _layer(width: int, norm: Callable[[int], nn.Module]) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width, bias=norm is no_norm), norm(width), nn.ReLU())


def fifty_layers_of_batchnorm(seed: int, fault: bool) -> Setup:
    """Fifty layers with BatchNorm, one after the other; the same layers as residual branches train."""
    torch.manual_seed(seed)
    layers = [_layer(32, nn.BatchNorm1d) for _ in range(50)]
    body = layers if fault else [Residual(layer) for layer in layers]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *body, nn.BatchNorm1d(32), nn.Linear(32, 10))
    return _setup(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), seed, 150)


def twenty_layers_without_norm(seed: int, fault: bool) -> Setup:
    """Twenty layers at torch's default initialization, without normalizers."""
    torch.manual_seed(seed)
    norm: Callable[[int], nn.Module] = no_norm if fault else nn.LayerNorm
    layers = [_layer(32, norm) for _ in range(20)]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *layers, nn.Linear(32, 10))
    return _setup(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), seed, 200)


def branches_without_norm(seed: int, fault: bool) -> Setup:
    """Residual branches with He initialization; without a norm in each, the stream doubles from block to block."""
    torch.manual_seed(seed)
    blocks = []
    for _ in range(16):
        first, second = nn.Linear(32, 64), nn.Linear(64, 32)
        for layer in (first, second):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        branch = [first, nn.ReLU(), second]
        blocks.append(Residual(nn.Sequential(*branch) if fault else nn.Sequential(nn.LayerNorm(32), *branch)))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *blocks, nn.LayerNorm(32), nn.Linear(32, 10))
    return _setup(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), seed, 150)


CASES = (
    Case(
        "fifty-layers-of-batchnorm",
        "held-out",
        fifty_layers_of_batchnorm,
        "gradients-explode",
        fix="the same layers as residual branches",
    ),
    Case(
        "twenty-layers-without-norm",
        "held-out",
        twenty_layers_without_norm,
        "gradients-vanish",
        fix="LayerNorm in each layer",
    ),
    Case(
        "branches-without-norm",
        "held-out",
        branches_without_norm,
        "residual-stream-grows",
        also=("gradients-explode",),
        fix="LayerNorm at the start of each branch",
    ),
)
