"""Statistics in low precision, and a BatchNorm folded into quantized weights."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.case import Case
from faults.data import Split, digits
from faults.development.networks import Transformer, cnn
from faults.development.setups import adamw, byte_setup, classify, decayed, digit_setup, sgd
from normscope import Setup


class OwnLayerNorm(nn.Module):
    """LayerNorm from a mean and a mean of squares, in the input's dtype or in float32."""

    def __init__(self, width: int, exact: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.exact = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), exact

    def forward(self, x: Tensor) -> Tensor:
        values = x.float() if self.exact else x
        mean = values.mean(-1, keepdim=True)
        variance = (values * values).mean(-1, keepdim=True) - mean * mean
        normal = (values - mean) * torch.rsqrt(variance.clamp(min=0) + 1e-5)
        return self.weight * normal.to(x.dtype) + self.bias


def squares_in_bfloat16(seed: int, fault: bool) -> Setup:
    """A residual stream with a common offset, as large models have; the variance is a small difference."""
    torch.manual_seed(seed)
    model = Transformer(norm=lambda width: OwnLayerNorm(width, exact=not fault))
    with torch.no_grad():
        model.embedding.weight.add_(30.0)
    return byte_setup(model.bfloat16(), adamw(1e-3), size=16, steps=150, seed=seed)


def buffers_in_bfloat16(seed: int, fault: bool) -> Setup:
    """Running statistics in bfloat16 stop on their way to values far from zero; float32 buffers arrive."""
    torch.manual_seed(seed)
    split = digits()
    bright = Split(split.x + 8, split.y, split.x_eval + 8, split.y_eval)
    model = cnn(norm=lambda channels: nn.BatchNorm2d(channels, momentum=0.01)).bfloat16()
    if not fault:
        for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.float()
    return decayed(classify(model, bright, sgd(0.05), size=32, steps=400, seed=seed, forward=_in_bfloat16))


def _in_bfloat16(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return model(batch[0].bfloat16()).float()


class Folded(nn.Module):
    """A convolution and its BatchNorm; evaluated, BatchNorm is folded into weights of four bits."""

    def __init__(self, inputs: int, outputs: int, stride: int, per_channel: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm, self.per_channel = nn.BatchNorm2d(outputs), per_channel

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return F.relu(self.norm(self.conv(x)))
        scale = self.norm.weight / (self.norm.running_var + self.norm.eps).sqrt()
        shift = self.norm.bias - self.norm.running_mean * scale
        weight = self.conv.weight * scale[:, None, None, None]
        largest = weight.abs().amax((1, 2, 3), keepdim=True) if self.per_channel else weight.abs().max()
        step = largest.clamp(min=1e-12) / 7
        return F.relu(F.conv2d(x, (weight / step).round() * step, shift, self.conv.stride, 1))


def four_bits(seed: int, fault: bool) -> Setup:
    """Filters of very different sizes, as after long training; one step size serves a whole folded layer."""
    torch.manual_seed(seed)
    layers = [Folded(1, 8, 1, not fault), Folded(8, 16, 2, not fault), Folded(16, 32, 2, not fault)]
    for layer in layers:
        with torch.no_grad():
            layer.norm.weight.mul_(torch.logspace(-1, 1, layer.norm.num_features))
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return digit_setup(model, adamw(3e-3), size=32, steps=200, seed=seed)


CASES = (
    Case(
        "squares-in-bfloat16",
        "development",
        squares_in_bfloat16,
        "statistics-in-low-precision",
        "https://github.com/huggingface/transformers/issues/33133",
        fix="statistics in float32",
    ),
    Case(
        "buffers-in-bfloat16",
        "development",
        buffers_in_bfloat16,
        "statistics-in-low-precision",
        also=("stale-running-statistics",),
        fix="BatchNorm in float32",
    ),
    Case(
        "folded-into-four-bits",
        "development",
        four_bits,
        "folding-changes-output",
        "https://github.com/Xilinx/brevitas/issues/388",
        fix="a step size for each channel",
    ),
)
