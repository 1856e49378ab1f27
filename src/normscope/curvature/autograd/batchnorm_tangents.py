r"""BatchNorm in forward mode by torch's fused kernels: three of them where its own formula takes some 150 small ones.

    y = w xh + b,    dy = w r P dx + xh dw + db,    P u = u - mean(u) - xh mean(u xh)       (statistics of the batch)
                     dy = w r   dx + xh dw + db                                             (running statistics)

P is symmetric, so dx -> w r P dx is the kernel that takes a gradient back. First order only: a product with J needs no
more. Layers of the user's own, with a forward patched onto them, with noise, or whose statistics go over several
processes keep their own path.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.batchnorm import _BatchNorm

from normscope.norms._inputs import check_input, per_channel
from normscope.norms.batch import _BatchNormLayer

_FORWARDS = (_BatchNorm.forward, _BatchNormLayer.forward)


def fused(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that `with_tangent` can answer for."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, _BatchNorm)
        and type(layer).forward in _FORWARDS
        and "forward" not in vars(layer)
        and not getattr(layer, "sync", False)
    }


def with_tangent(name: str, layer: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The layer's output as a dual tensor; its own where the forward itself takes gradients."""
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
        back = torch.ops.aten._batch_norm_impl_index_backward
        wanted = [True, False, False]
        dy = back(kernel, x, dx.contiguous(), weight, None, None, mean, rate, True, layer.eps, wanted, reserve)[0]
    elif dx is not None:
        dy = dx * per_channel(rate if weight is None else rate * weight, x)
    if d_weight is not None:
        centred, slope = x - per_channel(mean, x), per_channel(rate * d_weight, x)
        dy = centred.mul_(slope) if dy is None else dy.addcmul_(centred, slope)
    if d_bias is not None:
        along = per_channel(d_bias, x)
        dy = along.expand_as(y) if dy is None else dy.add_(along)
    return y if dy is None else forward_ad.make_dual(y, dy)


def _parts(parameter: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if parameter is None else tuple(forward_ad.unpack_dual(parameter))
