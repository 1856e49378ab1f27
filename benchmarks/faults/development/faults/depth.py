"""Signals and gradients that grow or vanish along depth, or in attention."""

import math

import torch
from torch import Tensor, nn

from faults.case import Case
from faults.development.networks import Layer, Norm, mlp, nothing
from faults.development.setups import adamw, digit_setup, sgd
from normscope import Setup


class Branch(nn.Module):
    """x + branch(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def deep_batchnorm(seed: int, fault: bool) -> Setup:
    """60 layers with BatchNorm; without skips each multiplies the gradient by about 1.2."""
    torch.manual_seed(seed)
    parts = [(nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU()) for _ in range(60)]
    middle = [layer for part in parts for layer in (part if fault else (Branch(*part),))]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), *middle, nn.Linear(48, 10))
    return digit_setup(model, sgd(0.01), size=64, steps=150, seed=seed)


def deep_plain(seed: int, fault: bool) -> Setup:
    """12 layers with torch's own initial weights and no normalizer."""
    torch.manual_seed(seed)
    model = mlp((64, *[48] * 12, 10), norm=nothing if fault else nn.BatchNorm1d)
    return digit_setup(model, sgd(0.02), size=32, steps=300, seed=seed)


def growing_stream(seed: int, fault: bool) -> Setup:
    """24 residual blocks without a normalizer in the branch; the stream doubles its variance in each."""
    torch.manual_seed(seed)
    blocks = []
    for _ in range(24):
        first, second = nn.Linear(48, 48), nn.Linear(48, 48)
        for layer in (first, second):
            nn.init.normal_(layer.weight, std=math.sqrt(2 / 48))
        blocks.append(Branch(*([] if fault else [nn.LayerNorm(48)]), first, nn.ReLU(), second))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), *blocks, nn.LayerNorm(48), nn.Linear(48, 10))
    return digit_setup(model, sgd(0.02), size=32, steps=200, seed=seed)


class RowTransformer(nn.Module):
    """A transformer whose tokens are the rows of an image; the last one is classified."""

    def __init__(self, qk_norm: Norm | None, width: int = 32) -> None:
        super().__init__()
        self.into, self.position = nn.Linear(8, width), nn.Parameter(torch.randn(8, width) / 2)
        self.layers = nn.Sequential(*[Layer(width, 4, nn.LayerNorm, qk_norm) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.into(x[:, 0]) + self.position))[:, -1])


def sharp_attention(seed: int, fault: bool) -> Setup:
    """Queries and keys start so large that each position looks at one other; after the fix they are normalized."""
    torch.manual_seed(seed)
    model = RowTransformer(None if fault else nn.RMSNorm)
    for layer in model.layers:
        with torch.no_grad():
            layer.attention.qkv.weight[:64].mul_(12)
    return digit_setup(model, adamw(1e-3), size=32, steps=200, seed=seed)


CASES = (
    Case(
        "sixty-layers-of-batchnorm",
        "development",
        deep_batchnorm,
        "gradients-explode",
        fix="a skip connection around each layer",
    ),
    Case("twelve-plain-layers", "development", deep_plain, "gradients-vanish", fix="BatchNorm in each layer"),
    Case(
        "branches-without-normalizer",
        "development",
        growing_stream,
        "residual-stream-grows",
        also=("gradients-explode",),
        fix="LayerNorm in each branch",
    ),
    Case(
        "attention-at-one-position",
        "development",
        sharp_attention,
        "attention-logits-grow",
        "https://github.com/facebookresearch/deit/issues/29",
        fix="RMSNorm on queries and keys",
    ),
)
