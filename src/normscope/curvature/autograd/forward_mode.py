r"""Forward mode at the cost of its products: kept outputs of bilinear layers, and BatchNorm by torch's fused kernels.

**Kept outputs.** J^T u goes back through the graph of one pass, which holds what it needs. J v in forward mode needs
the output of every layer again, and computes it again.

    y = x * W + b,    dy = dx * W + x * dW + db          bilinear: a matrix product or a convolution

For a bilinear layer that makes three products of the layer's size: x * W, dx * W and x * dW. The first of them is the
output, which is kept from the first pass, so two are left. An output is computed again if it was written into since, or
if its part of the forward takes gradients itself. Under activation checkpointing no outputs are kept, since memory is
short there.

**BatchNorm.** Three fused kernels take the place of the some 150 small ones of torch's own formula.

    y = w xh + b,    dy = w r P dx + xh dw + db,    P u = u - mean(u) - xh mean(u xh)       (statistics of the batch)
                     dy = w r   dx + xh dw + db                                             (running statistics)

P is symmetric, so dx -> w r P dx is the kernel that takes a gradient back. This is a first derivative only, and a
product with J needs no more. Four kinds of layers keep their own path: layers of the user's own, layers with a forward
patched onto them, layers with noise, and layers whose statistics go over several processes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from normscope.isolation.module_calls import answering
from normscope.norms.batch import BatchNormLayer
from normscope.norms.channels import check_input, per_channel

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCHNORM_FORWARDS = (_BatchNorm.forward, BatchNormLayer.forward)


class KeptLayerOutputs:
    """The outputs of linear maps and convolutions in one pass of `model`, by layer and call."""

    def __init__(self, model: nn.Module) -> None:
        self._layers = {name: layer for name, layer in model.named_modules() if _bilinear(layer)}
        self._kept: dict[str, list[tuple[Tensor, int] | None]] = defaultdict(list)
        self._calls: dict[str, int] = {}

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Inside, a pass of the model keeps its outputs."""
        with answering(self._layers, self._keep):
            yield

    @contextmanager
    def used(self) -> Iterator[None]:
        """Inside, a pass in forward mode that repeats the kept one uses its outputs."""
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
            d_bias_everywhere = d_bias if isinstance(layer, nn.Linear) else d_bias.view(-1, *[1] * (weight.ndim - 2))
            tangents.append(d_bias_everywhere.expand_as(kept[0]))
        if not tangents:
            return kept[0]
        return forward_ad.make_dual(kept[0], tangents[0] if len(tangents) == 1 else tangents[0].add_(tangents[1]))


def _bilinear(layer: nn.Module) -> bool:
    """Whether the layer is torch's linear map or convolution with torch's forward; borders may be zeros or copies."""
    if "forward" in vars(layer):
        return False
    layer_class: Any = type(layer)
    if isinstance(layer, _CONVOLUTIONS):
        (torch_class,) = (base for base in _CONVOLUTIONS if isinstance(layer, base))
        return layer_class.forward is torch_class.forward and layer_class._conv_forward is torch_class._conv_forward
    return isinstance(layer, nn.Linear) and layer_class.forward is nn.Linear.forward


def _apply(layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = F.linear(x, weight, bias) if isinstance(layer, nn.Linear) else layer._conv_forward(x, weight, bias)
    return y


def fused(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that `with_tangent` can answer for."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, _BatchNorm)
        and type(layer).forward in _BATCHNORM_FORWARDS
        and "forward" not in vars(layer)
        and not getattr(layer, "sync", False)
    }


def with_tangent(name: str, layer: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The layer's output as a dual tensor; where the forward itself takes gradients, by the layer's own forward."""
    if torch.is_grad_enabled():
        return forward(*args, **kwargs)
    x, dx = forward_ad.unpack_dual(*args, *kwargs.values())
    weight, d_weight = _parts(layer.weight)
    bias, d_bias = _parts(layer.bias)
    batch = layer.training or layer.running_mean is None
    check_input(x, type(layer).__name__, layer.num_features, (2, 3, 4, 5), batch_stats=batch)
    running = (None, None) if batch else (layer.running_mean, layer.running_var)
    normalize = torch.ops.aten._batch_norm_impl_index
    y, mean, rate, reserve, kernel = normalize(x, weight, bias, *running, batch, 0.0, layer.eps, True)
    if not batch:
        mean, rate = layer.running_mean, (layer.running_var + layer.eps).rsqrt()
    dy = None
    if dx is not None and batch:
        backward_kernel = torch.ops.aten._batch_norm_impl_index_backward
        batch_values = weight, None, None, mean, rate, True, layer.eps
        dy = backward_kernel(kernel, x, dx.contiguous(), *batch_values, [True, False, False], reserve)[0]
    elif dx is not None:
        dy = dx * per_channel(rate if weight is None else rate * weight, x)
    if d_weight is not None:
        centred, slope = x - per_channel(mean, x), per_channel(rate * d_weight, x)
        dy = centred.mul_(slope) if dy is None else dy.addcmul_(centred, slope)
    if d_bias is not None:
        d_bias_everywhere = per_channel(d_bias, x)
        dy = d_bias_everywhere.expand_as(y) if dy is None else dy.add_(d_bias_everywhere)
    return y if dy is None else forward_ad.make_dual(y, dy)


def _parts(parameter: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if parameter is None else tuple(forward_ad.unpack_dual(parameter))
