r"""Forward mode without a second forward: outputs of linear maps and convolutions are kept from the first.

    y = x * W + b,    dy = dx * W + x * dW + db          bilinear: a matrix product or a convolution

J^T u goes back through the graph of one pass; J v needs every y of it again, and then two more products of its size.
Kept, two of three are left. An output that something has written into since is made anew, and so is one in
a part of the forward that takes gradients itself; under activation checkpointing, which is there to keep none of them,
all are.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from normscope.isolation.module_calls import answering

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Outputs:
    """Of one pass of `model`, by layer and call."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = {name: layer for name, layer in model.named_modules() if _bilinear(layer)}
        self._kept: dict[str, list[tuple[Tensor, int] | None]] = defaultdict(list)
        self._calls: dict[str, int] = {}

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Around the pass."""
        with answering(self._layers, self._keep):
            yield

    @contextmanager
    def used(self) -> Iterator[None]:
        """Around a pass in forward mode that repeats it."""
        self._calls = dict.fromkeys(self._layers, 0)
        with answering(self._layers, self._with_tangent):
            yield

    def _keep(self, name: str, layer: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        y = forward(*args, **kwargs)
        stays = y.requires_grad and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        self._kept[name].append((y.detach(), y._version) if stays else None)
        return y

    def _with_tangent(self, name: str, layer: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        call = self._calls[name]
        self._calls[name] += 1
        kept = self._kept[name][call] if call < len(self._kept[name]) else None
        if kept is None or kept[0]._version != kept[1] or torch.is_grad_enabled():
            return forward(*args, **kwargs)
        x, dx = forward_ad.unpack_dual(*args, *kwargs.values())
        weight, d_weight = forward_ad.unpack_dual(layer.weight)
        d_bias = None if layer.bias is None else forward_ad.unpack_dual(layer.bias).tangent
        parts = [(dx, weight, None)] if dx is not None else []
        parts += [(x, d_weight, d_bias)] if d_weight is not None else []
        tangents = [_apply(layer, *part) for part in parts]
        if d_weight is None and d_bias is not None:
            along = d_bias if isinstance(layer, nn.Linear) else d_bias.view(-1, *[1] * (weight.ndim - 2))
            tangents.append(along.expand_as(kept[0]))
        if not tangents:
            return kept[0]
        return forward_ad.make_dual(kept[0], tangents[0] if len(tangents) == 1 else tangents[0].add_(tangents[1]))


def _bilinear(layer: nn.Module) -> bool:
    """Whether it is one of torch's own, with no forward of the user's; reflected borders are copies, not zeros."""
    if "forward" in vars(layer):
        return False
    kind: Any = type(layer)
    if isinstance(layer, _CONVOLUTIONS):
        (own,) = (base for base in _CONVOLUTIONS if isinstance(layer, base))
        return kind.forward is own.forward and kind._conv_forward is own._conv_forward
    return isinstance(layer, nn.Linear) and kind.forward is nn.Linear.forward


def _apply(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = F.linear(x, weight, bias) if isinstance(layer, nn.Linear) else layer._conv_forward(x, weight, bias)
    return y
