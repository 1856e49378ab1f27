"""Three readings of a normalizer's statistics: differentiated through, held constant, or those of eval mode.

    batch       the statistics of this batch, differentiated through: the loss as it is trained
    frozen      the statistics of this batch, held constant: what a theory that takes mean and variance as given sees
    running     eval mode: running statistics, no dropout, no noise

Layers whose statistics are not over the batch (LayerNorm, GroupNorm, InstanceNorm, RMSNorm) are the same in all three.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from normscope.choices import check_choice
from normscope.norms._inputs import check_input, per_channel, standardize, wide
from normscope.norms.lp import _LpLayer, lp_statistics
from normscope.norms.noisy import _NoisyLayer
from normscope.observe.calls import answering

STATISTICS = ("batch", "frozen", "running")


def over_the_batch(model: nn.Module) -> dict[str, nn.Module]:
    """Layers that now take their statistics over the batch."""
    kinds = (nn.modules.batchnorm._BatchNorm, _LpLayer)
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, kinds) and (layer.training or getattr(layer, "running_mean", None) is None)
    }


@contextmanager
def reading(model: nn.Module, statistics: str) -> Iterator[None]:
    """Inside, the forwards of `model` read their statistics so."""
    check_choice("stats", statistics, STATISTICS)
    if statistics == "running":
        training = [module for module in model.modules() if module.training]
        model.eval()
        try:
            yield
        finally:
            for module in training:
                module.training = True
    elif statistics == "frozen":
        with answering(over_the_batch(model), _frozen):
            yield
    else:
        yield


def _frozen(name: str, layer: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
    (x,) = args
    check_input(x, type(layer).__name__, None, (2, 3, 4, 5), batch_stats=True)
    with torch.no_grad():
        mean, rate = _statistics(layer, x)
    y = standardize(x, mean, rate, layer.weight, layer.bias)  # type: ignore[arg-type]
    return layer.noise(y) if isinstance(layer, _NoisyLayer) else y


def _statistics(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and what the layer multiplies by, as constants."""
    x = wide(x.detach())
    if isinstance(layer, _LpLayer):
        mean, norm = lp_statistics(x, layer.p, layer.centered, False)
        return mean, 1 / (norm + layer.eps)
    dims = [0, *range(2, x.ndim)]
    mean = x.mean(dims)
    variance = (x - per_channel(mean, x)).square().mean(dims)
    return mean, (variance + float(layer.eps)).rsqrt()  # type: ignore[arg-type]
