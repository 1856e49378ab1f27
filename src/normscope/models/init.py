r"""Initial weights, drawn from one seeded generator in the order of the layers.

    glorot        W ~ N(0, 2 / (fan_in + fan_out))        b = 0              seeds 000/001
    mean_field    W ~ N(0, sigma_w2 / fan_in)             b ~ N(0, sigma_b2) seed 002

Normalizers are passed over and draw nothing, so variants of a network that differ in them alone start from
the same W_0.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from normscope.choices import check_choice

INITS = ("glorot", "mean_field")


@torch.no_grad()
def initialize(model: nn.Module, init: str, *, seed: int, sigma_w2: float = 2.0, sigma_b2: float = 0.5) -> None:
    """Redraws every Linear and convolution of `model`, in place; the draws do not depend on the device.

    sigma_w2 = 2 and sigma_b2 = 0.5 are the values of seed 002, Section 4; glorot has no use for them.
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
    """What layers draw as they are built (torch's own initial weights, the seeds of noise) comes from `seed`.

    torch's global generator is as before at the end.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _fill_normal(parameter: torch.Tensor, variance: float, generator: torch.Generator) -> None:
    draws = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    parameter.copy_(draws.mul_(variance**0.5))
