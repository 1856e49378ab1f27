r"""Initial weights, drawn from one seeded generator in the order of the layers.

    glorot        W ~ N(0, 2 / (fan_in + fan_out))        b = 0                   Santurkar et al. 2018
    mean_field    W ~ N(0, sigma_w2 / fan_in)             b ~ N(0, sigma_b2)      Wei et al. 2019

Normalizers draw nothing, so variants of a network that differ in the normalizer only start from the same W_0.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from normscope.messages.choices import check_choice

INITS = ("glorot", "mean_field")


@torch.no_grad()
def initialize(model: nn.Module, init: str, *, seed: int, sigma_w2: float = 2.0, sigma_b2: float = 0.5) -> None:
    """Redraw the weights of every Linear and convolution of `model`, in place; the draws do not depend on the device.

    Args:
        model: the network.
        init: "glorot" or "mean_field".
        seed: seed of the draws.
        sigma_w2: variance of the weights times fan-in, for mean_field; 2 is that of Wei et al. 2019, Section 4.
        sigma_b2: variance of the biases, for mean_field; 0.5 is that of the same section.
    """
    check_choice("init", init, INITS)
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if not isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            continue
        fan_in, fan_out = nn.init._calculate_fan_in_and_fan_out(layer.weight)
        variance = 2 / (fan_in + fan_out) if init == "glorot" else sigma_w2 / fan_in
        _fill_normal(layer.weight, variance, generator)
        if layer.bias is not None:
            _fill_normal(layer.bias, 0.0 if init == "glorot" else sigma_b2, generator)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """While this context lasts, torch's CPU generator starts from `seed`; it is put back at the end.

    Layers draw from it as they are built: torch's own initial weights, the seeds of noise layers.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _fill_normal(parameter: torch.Tensor, variance: float, generator: torch.Generator) -> None:
    draws = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    parameter.copy_(draws.mul_(variance**0.5))
