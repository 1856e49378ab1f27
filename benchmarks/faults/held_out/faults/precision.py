"""Precision: eps against the variance, statistics in bfloat16, quantized weights after folding."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.case import Case
from faults.data import accuracy, chunks, digits, shuffled
from faults.held_out.networks import mlp
from normscope import Setup


def recordings_of_every_loudness(seed: int, fault: bool) -> Setup:
    """Inputs whose amplitude spans four decades, normalized by RMSNorm with the eps of bfloat16."""
    torch.manual_seed(seed)
    data = digits()
    generator = torch.Generator().manual_seed(seed)
    x, x_eval = (
        part.flatten(1) * 10 ** (-4 * torch.rand(len(part), 1, generator=generator)) for part in (data.x, data.x_eval)
    )
    eps = torch.finfo(torch.bfloat16).eps if fault else 1e-12
    model = nn.Sequential(
        nn.RMSNorm(64, eps=eps), nn.Linear(64, 64), nn.RMSNorm(64, eps, False), nn.GELU(), nn.Linear(64, 10)
    )
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(x, data.y, size=64, steps=200, seed=seed),
        torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0),
        chunks(x_eval, data.y_eval),
        accuracy,
        steps=200,
        autocast=torch.bfloat16,
    )


class OnePassLayerNorm(nn.Module):
    """LayerNorm with the variance as mean of squares minus square of mean, in `dtype`."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        h = x.to(self.dtype)
        mean = h.mean(-1, keepdim=True)
        variance = (h.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
        return ((h - mean) / (variance + 1e-5).sqrt()).to(x.dtype) * self.weight + self.bias


def one_pass_in_bfloat16(seed: int, fault: bool) -> Setup:
    """The stream has a large mean, and its variance is a difference of two large numbers."""
    torch.manual_seed(seed)
    data = digits()
    dtype = torch.bfloat16 if fault else torch.float32
    model = nn.Sequential(
        nn.Flatten(),
        OnePassLayerNorm(64, dtype),
        nn.Linear(64, 64),
        OnePassLayerNorm(64, dtype),
        nn.GELU(),
        nn.Linear(64, 10),
    )
    nn.init.constant_(model[2].bias, 25.0)
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x + 25.0, data.y, size=64, steps=200, seed=seed),
        torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0),
        chunks(data.x_eval + 25.0, data.y_eval),
        accuracy,
        steps=200,
    )


class FoldedLinear(nn.Module):
    """Linear and BatchNorm. In eval mode the two are one linear layer with weights of 4 bits."""

    def __init__(self, a: int, b: int, by_channel: bool) -> None:
        super().__init__()
        self.linear, self.norm, self.by_channel = nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), by_channel
        with torch.no_grad():
            self.linear.weight *= torch.logspace(-2.0, 0.0, b)[:, None]

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            out: Tensor = self.norm(self.linear(x))
            return out
        assert self.norm.running_mean is not None
        assert self.norm.running_var is not None
        gain = self.norm.weight / (self.norm.running_var + self.norm.eps).sqrt()
        weight = self.linear.weight * gain[:, None]
        top = weight.abs().amax(1, keepdim=True) if self.by_channel else weight.abs().max()
        step = top / 7
        rounded = (weight / step).round() * step
        return F.linear(x, rounded, self.norm.bias - self.norm.running_mean * gain)


def folded_to_four_bits(seed: int, fault: bool) -> Setup:
    """Weights are folded and quantized for evaluation, with one step size for the whole layer."""
    torch.manual_seed(seed)
    data = digits()
    layers: list[nn.Module] = [nn.Flatten()]
    for a in (64, 64, 64):
        layers += [FoldedLinear(a, 64, by_channel=not fault), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, FoldedLinear):
                layer.norm.weight.copy_(torch.logspace(-1.5, 1.0, 64))
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=64, steps=200, seed=seed),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=200,
    )


def dropout_before_norm(seed: int, fault: bool) -> Setup:
    """Dropout of 0.7 before the linear layers that feed BatchNorms; the fix puts it after the last BatchNorm."""
    torch.manual_seed(seed)
    data = digits()
    drop, steps = 0.7, 300
    if fault:
        first: list[nn.Module] = [nn.Dropout(drop), nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU()]
        second: list[nn.Module] = [nn.Dropout(drop), nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU()]
        model = nn.Sequential(nn.Flatten(), *first, *second, nn.Linear(64, 10))
    else:
        plain = mlp([64, 64, 64, 10])
        model = nn.Sequential(*plain[:-1], nn.Dropout(drop), plain[-1])
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x + 1.0, data.y, size=64, steps=steps, seed=seed),
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        chunks(data.x_eval + 1.0, data.y_eval),
        accuracy,
        steps=steps,
    )


CASES = (
    Case(
        "recordings-of-every-loudness",
        "held-out",
        recordings_of_every_loudness,
        "eps-against-variance",
        "pytorch/pytorch#189581",
        fix="eps 1e-12",
    ),
    Case(
        "one-pass-in-bfloat16",
        "held-out",
        one_pass_in_bfloat16,
        "statistics-in-low-precision",
        fix="statistics in float32",
    ),
    Case(
        "folded-to-four-bits",
        "held-out",
        folded_to_four_bits,
        "folding-changes-output",
        "Xilinx/brevitas#388",
        fix="a step size for each channel",
    ),
    Case(
        "dropout-before-norm",
        "held-out",
        dropout_before_norm,
        "dropout-before-batchnorm",
        fix="dropout after the last BatchNorm",
    ),
)
