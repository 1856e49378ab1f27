"""Signals that grow or fade along depth at the start."""

import torch
from torch import nn

from faults.case import Case
from faults.data import accuracy, chunks, digits, shuffled
from faults.held_out.networks import Residual
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


def _layer(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width, bias=False), nn.BatchNorm1d(width), nn.ReLU())


def fifty_layers_of_batchnorm(seed: int, fault: bool) -> Setup:
    """Fifty layers with BatchNorm, one after the other; the same layers as residual branches train."""
    torch.manual_seed(seed)
    layers = [_layer(32) for _ in range(50)]
    body = layers if fault else [Residual(layer) for layer in layers]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *body, nn.BatchNorm1d(32), nn.Linear(32, 10))
    return _setup(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), seed, 150)


def sixteen_layers_without_norm(seed: int, fault: bool) -> Setup:
    """Sixteen tanh layers without normalizers; torch's default initialization loses a factor of 1.7 in each."""
    torch.manual_seed(seed)
    linear = [nn.Linear(32, 32) for _ in range(16)]
    if not fault:
        for layer in linear:
            nn.init.orthogonal_(layer.weight)
            nn.init.zeros_(layer.bias)
    body = [part for layer in linear for part in (layer, nn.Tanh())]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *body, nn.Linear(32, 10))
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
        "sixteen-layers-without-norm",
        "held-out",
        sixteen_layers_without_norm,
        "gradients-vanish",
        fix="orthogonal initialization",
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
