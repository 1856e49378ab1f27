"""Channels that are constant or dead."""

import torch
from torch import Tensor, nn

from faults.case import Case
from faults.data import Split, digits
from faults.development.networks import cnn, mlp
from faults.development.setups import adamw, classify, digit_setup, sgd
from normscope import Setup


def quiet_sensors(seed: int, fault: bool) -> Setup:
    """A table with 64 columns that vary, and 448 that vary by a hundredth; BatchNorm makes all alike."""
    torch.manual_seed(seed)
    split = digits()
    generator = torch.Generator().manual_seed(3)

    def table(x: Tensor) -> Tensor:
        noise = 1e-2 * torch.randn(len(x), 448, generator=generator)
        return torch.cat([x.flatten(1), 1.0 + noise], 1)

    wide = Split(table(split.x)[:300], split.y[:300], table(split.x_eval), split.y_eval)
    model = nn.Sequential(nn.BatchNorm1d(512, eps=1e-5 if fault else 1e-1, affine=False), *mlp((512, 64, 10)))
    return classify(model, wide, adamw(3e-3), size=32, steps=200, seed=seed)


def drifting_pixels(seed: int, fault: bool) -> Setup:
    """Dark border pixels, constant in training, glow a little in evaluation; BatchNorm1d at the entrance."""
    torch.manual_seed(seed)
    split = digits()
    generator = torch.Generator().manual_seed(3)

    def bordered(x: Tensor, glow: float) -> Tensor:
        border = glow * torch.rand(len(x), 36, generator=generator)
        return torch.cat([x.flatten(1), border], 1)

    framed = Split(bordered(split.x, 1e-5), split.y, bordered(split.x_eval, 0.05), split.y_eval)
    model = nn.Sequential(nn.BatchNorm1d(100, eps=1e-5 if fault else 1e-1), *mlp((100, 64, 10)))
    return classify(model, framed, sgd(0.05), size=64, steps=200, seed=seed)


def slimmed(seed: int, fault: bool) -> Setup:
    """Pruning set scales to zero and left shifts below zero; the network is trained again for a new task."""
    torch.manual_seed(seed)
    model = cnn(width=16)
    if fault:
        for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
            with torch.no_grad():
                norm.weight[1:] = 0.0
                norm.bias[1:] = -0.1
    return digit_setup(model, sgd(0.05), size=32, steps=150, seed=seed)


CASES = (
    Case("quiet-sensors", "development", quiet_sensors, "constant-channels", fix="eps 0.1"),
    Case(
        "glowing-border",
        "development",
        drifting_pixels,
        "constant-channels",
        also=("shifted-evaluation-data",),
        fix="eps 0.1",
    ),
    Case("slimmed-network", "development", slimmed, "dead-channels", fix="scales and shifts set anew"),
)
