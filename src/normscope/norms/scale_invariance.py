"""Whether a layer normalizes, by what it computes, whatever the name of its class.

A layer normalizes if a factor in its input changes nothing, f(10 x) = f(x), and each output depends on other values of
the input than its own. The second part leaves out elementwise functions: a sign, or a tanh that is saturated.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_FACTOR = 10.0
# Largest change of the outputs under a factor of the input, relative to their spread. An eps of 1e-5 beside a variance
# of 1e-4 makes it 0.05; a linear layer has 9.
_INVARIANT = 0.1
# Least change of an output that counts as dependence on other values, relative to the spread: above rounding.
_DEPENDS = 1e-2


@dataclass(frozen=True)
class Normalizing:
    """The dependence of a layer's outputs on its inputs.

    Attributes:
        normalizes: whether a factor in its input changes nothing, and outputs depend on other values.
        over_samples: whether it normalizes, and outputs depend on other samples of the batch.
    """

    normalizes: bool
    over_samples: bool


def normalizing(forward: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Normalizing:
    """How a layer's outputs change with its inputs, in three calls of `forward`.

    Args:
        forward: gives the outputs of the layer; two calls draw the same random numbers.
        x: an input of the layer, samples first.
        y: the layer's output for x.

    Example:
        >>> x = torch.randn(8, 4)
        >>> normalizing(lambda x: x / x.abs().mean(0), x, x / x.abs().mean(0))
        Normalizing(normalizes=True, over_samples=True)
    """
    y = y.detach().clone()
    later = torch.arange(len(x), device=x.device) >= (len(x) + 1) // 2
    draws = torch.Generator("cpu").manual_seed(0)
    some = torch.rand(x.shape, generator=draws, device="cpu").to(x.device) < 0.5
    changed = [torch.where(where, _FACTOR * x, x) for where in (later.view(-1, *[1] * (x.ndim - 1)), some)]
    # All three calls are made in any case: a layer may exchange statistics with other processes.
    scaled, by_samples, by_values = (forward(each).detach() for each in (_FACTOR * x, *changed))
    spread = (y - y.mean(0)).abs().mean() if len(y) > 1 else (y - y.mean()).abs().mean()
    if not spread > 0 or not scaled.isfinite().all():
        return Normalizing(False, False)
    invariant = bool((scaled - y).abs().mean() <= _INVARIANT * spread)
    per_sample = y.shape[:1] == x.shape[:1] and len(x) > 1
    samples = per_sample and bool((by_samples - y)[~later].abs().max() > _DEPENDS * spread)
    # A layer that changes the shape of its input is no elementwise function.
    values = y.shape != x.shape or bool(((by_values - y)[~some].abs() > _DEPENDS * spread).any())
    return Normalizing(invariant and (samples or values), invariant and samples)
