"""The normalizers of a model as the rules read them: known layers, and hand-written ones that were recognized."""

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from normscope.norms.find_norms import find_norms
from normscope.norms.kinds import OVER_BATCH_LAYERS
from normscope.norms.recognition import has_frozen_statistics
from normscope.norms.wrappers import core


@dataclass(frozen=True)
class Normalizer:
    """One normalizer.

    Attributes:
        name: its name in the model.
        layer: the module in the user's model; read, never called.
        core: the layer of torch or normscope that it is, or that it computes.
    """

    name: str
    layer: nn.Module
    core: nn.Module

    @property
    def kind(self) -> str:
        """The class in a word, as "BatchNorm2d"."""
        return type(self.core).__name__

    @property
    def over_batch(self) -> bool:
        """Whether its statistics go over the samples of a batch in train mode."""
        return isinstance(self.core, OVER_BATCH_LAYERS)

    @property
    def tracks(self) -> bool:
        """Whether it keeps running statistics of the batches."""
        return self.over_batch and isinstance(getattr(self.layer, "running_mean", None), Tensor)

    @property
    def centers(self) -> bool:
        """Whether it subtracts a mean, so that a constant added to its input changes nothing."""
        return not isinstance(self.core, nn.RMSNorm) and "RMS" not in self.kind and getattr(self.core, "centered", True)

    @property
    def momentum(self) -> float | None:
        """The weight of a new batch in the running statistics; None for their plain mean."""
        momentum = getattr(self.layer, "momentum", None)
        return None if momentum is None else float(momentum)

    def eps(self, dtype: torch.dtype) -> float:
        """The number added to the variance of inputs of this dtype."""
        eps = getattr(self.core, "eps", None)
        return torch.finfo(dtype).eps if eps is None else float(eps)

    @property
    def weight(self) -> Tensor | None:
        """The scale, a parameter or a buffer."""
        return self._affine("weight")

    @property
    def bias(self) -> Tensor | None:
        """The shift, a parameter or a buffer."""
        return self._affine("bias")

    def _affine(self, name: str) -> Tensor | None:
        own = getattr(self.layer, name, None)
        return own if isinstance(own, Tensor) else None

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of the layer by their names in the model."""
        prefix = f"{self.name}." if self.name else ""
        return {prefix + name: parameter for name, parameter in self.layer.named_parameters()}

    @property
    def trains(self) -> bool:
        """Whether one of its parameters asks for a gradient."""
        return any(parameter.requires_grad for parameter in self.parameters.values())

    @property
    def fresh(self) -> bool:
        """Whether its running statistics are still the first ones, mean 0 and variance 1."""
        if not self.tracks:
            return False
        buffers = dict(self.layer.named_buffers())
        mean, var = buffers["running_mean"], buffers.get("running_var", buffers.get("running_norm"))
        return not bool(mean.any()) and (var is None or bool((var == 1).all()))


def normalizers_of(model: nn.Module) -> tuple[tuple[Normalizer, ...], Mapping[str, str]]:
    """The normalizers in the order of the model's modules, and names of unrecognized ones with the reason."""
    found = find_norms(model)
    layers = {name: core(found.twins.get(layer, layer)) for name, layer in found.layers.items()}
    known = [Normalizer(name, found.layers[name], inner) for name, inner in layers.items()]
    own = [
        Normalizer(name, module, nn.BatchNorm2d(len(module.running_mean)))
        for name, module in model.named_modules()
        if name not in layers and has_frozen_statistics(module) and _moves_statistics(module)
    ]
    left = {name: reason for name, reason in found.left.items() if name not in {norm.name for norm in own}}
    return tuple(known + own), left


def _moves_statistics(module: nn.Module) -> bool:
    """Whether a layer with BatchNorm's buffers moves them in train mode, as a hand-written BatchNorm does."""
    mean = module.running_mean
    if not isinstance(mean, Tensor) or mean.ndim != 1:
        return False
    for space in ((4, 4), ()):
        probed = copy.deepcopy(module).train()
        with torch.no_grad(), contextlib.suppress(Exception):
            probed(torch.randn(8, len(mean), *space, dtype=mean.dtype, device=mean.device))
            return not torch.equal(probed.get_buffer("running_mean"), mean)
    return False


def statistic_dims(norm: Normalizer, x: Tensor) -> tuple[int, ...]:
    """The dimensions of its input over which one statistic is taken; groups of channels are split off beforehand."""
    inner = norm.core
    if norm.over_batch:
        return (0, *range(2, x.ndim))
    if isinstance(inner, _InstanceNorm):
        return tuple(range(2, x.ndim))
    if isinstance(inner, (nn.LayerNorm, nn.RMSNorm)):
        return tuple(range(x.ndim - len(inner.normalized_shape), x.ndim))
    return tuple(range(1, x.ndim))


def values_per_statistic(norm: Normalizer, shape: tuple[int, ...]) -> int:
    """The number of values over which one mean and variance are taken, for an input of this shape.

    Example:
        >>> layer = nn.GroupNorm(4, 8)
        >>> values_per_statistic(Normalizer("norm", layer, layer), (16, 8, 3, 3))
        18
    """
    like: Any = torch.empty(shape, device="meta")
    count = 1
    for dim in statistic_dims(norm, like):
        count *= shape[dim]
    groups = getattr(norm.core, "num_groups", 1)
    return count // groups


def variances(norm: Normalizer, x: Tensor) -> Tensor:
    """The variance behind every statistic that it takes of `x`, about 0 for RMSNorm, in float32 at least."""
    x = x.detach()
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    groups = getattr(norm.core, "num_groups", 1)
    if isinstance(norm.core, nn.GroupNorm):
        x = x.reshape(len(x), groups, -1)
        return x.var(-1, correction=0).flatten()
    dims = statistic_dims(norm, x)
    if not norm.centers:
        return x.square().mean(dims).flatten()
    return x.var(dims, correction=0).flatten()
