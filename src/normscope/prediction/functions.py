"""Which rule a function or method has, by what torch calls it.

A handler takes the walk, the name of the layer, and the operation's own arguments, with a Field for every tensor of the
network. An operation that is not here is refused by name.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.prediction import elementwise, joining, linear, normalizers, pooling
from normscope.prediction.field import Field
from normscope.prediction.maximum import max_pool
from normscope.prediction.walk import Walk
from normscope.theory.gaussian import RELU, Activation
from normscope.theory.window import Window

Handler = Callable[..., Any]


def _two(value: Any, dims: int = 2) -> tuple[int, int]:
    """Height and width of an argument that may be one number; along a line the height is 1."""
    if isinstance(value, (tuple, list)):
        return (1, int(value[0])) if len(value) == 1 else (int(value[0]), int(value[1]))
    return (int(value), int(value)) if dims == 2 else (1, int(value))


def leaky(slope: float) -> Activation:
    return Activation("leaky relu", lambda z: F.leaky_relu(z, slope), line=(slope, 1 - slope), monotone=slope >= 0)


def linear_rule(walk: Walk, name: str, x: Field, weight: Tensor, bias: Tensor | None = None) -> Field:
    return linear.linear(walk, name, x, weight, bias)


def convolution_rule(
    walk: Walk,
    name: str,
    x: Field,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Field:
    dims = weight.ndim - 2
    if dims == 3:
        raise ValueError("is a convolution in three dimensions, which has no map here")
    d = _two(dilation, dims)
    kernel = (1, *weight.shape[2:])[-2:]
    if padding == "valid":
        padding = 0
    if padding == "same":
        span = [d[i] * (kernel[i] - 1) for i in range(2)]
        if any(s % 2 for s in span):
            raise ValueError("pads 'same' on one side more than on the other, which has no map here")
        padding = (span[0] // 2, span[1] // 2)
    pad = (
        _two(padding, dims)
        if dims == 2 or (isinstance(padding, tuple) and len(padding) == 2)
        else (0, _two(padding, 1)[1])
    )
    return linear.convolution(
        walk, name, x, weight, bias, stride=_two(stride, dims), padding=pad, dilation=d, groups=groups
    )


def batch_norm_rule(
    walk: Walk,
    name: str,
    x: Field,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Field:
    running = None if training or running_mean is None or running_var is None else (running_mean, running_var)
    return normalizers.batch_norm(walk, name, x, weight, bias, eps, running)


def _aten_batch_norm(
    walk: Walk, name: str, x: Field, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any
) -> Field:
    return batch_norm_rule(walk, name, x, mean, var, weight, bias, training, rest[0], rest[1])


def layer_norm_rule(
    walk: Walk, name: str, x: Field, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Field:
    if not x.flat or (x.sites.count > 1 and x.sites.form != "samples"):
        raise ValueError(
            "normalizes the last dimensions of images; there is a map for (N, features) and for GroupNorm(1, C)"
        )
    normalizers.check_features(x, shape)
    return normalizers.sample_norm(walk, name, x, weight, bias, eps, centre=True, kind="LayerNorm")


def group_norm_rule(
    walk: Walk, name: str, x: Field, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Field:
    if x.channels % groups:
        raise ValueError(f"normalizes {groups} groups and gets {x.channels} channels, which they do not divide")
    if x.channels // groups * (1 if x.flat else x.sites.count) < linear.NARROW:
        walk.warn(f"{name}: groups of {x.channels // groups} channels are narrow for a theory of many channels.")
    if groups == x.channels:
        raise ValueError("normalizes every channel of a sample by itself (InstanceNorm), which has no map here")
    return normalizers.sample_norm(walk, name, x, weight, bias, eps, centre=True, kind="GroupNorm")


def average_rule(
    walk: Walk,
    name: str,
    x: Field,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Field:
    window = _window(x, kernel_size, stride, padding, 1, ceil_mode)
    if divisor_override is not None or (not count_include_pad and max(window.padding)):
        raise ValueError("divides by other numbers than its window has places, which has no map here")
    return pooling.average_pool(walk, x, window)


def adaptive_rule(walk: Walk, name: str, x: Field, output_size: Any) -> Field:
    dims = len(x.shape) - 1
    wanted = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * dims
    sizes = x.shape[1:]
    target = [s if w is None else int(w) for w, s in zip(wanted, sizes, strict=True)]
    if any(s % t for s, t in zip(sizes, target, strict=True)):
        raise ValueError(
            f"pools {sizes} adaptively to {tuple(target)}, in windows of different sizes, which has no map here"
        )
    kernel = tuple(s // t for s, t in zip(sizes, target, strict=True))
    return pooling.average_pool(walk, x, _window(x, kernel, None, 0, 1, False))


def maximum_rule(
    walk: Walk,
    name: str,
    x: Field,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Field:
    if any(d != 1 for d in (dilation if isinstance(dilation, (tuple, list)) else (dilation,))):
        raise ValueError("takes maxima over dilated windows, which has no map here. Pool without dilation")
    return max_pool(walk, name, x, _window(x, kernel_size, stride, padding, dilation, ceil_mode))


def _window(x: Field, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Window:
    if x.flat:
        raise ValueError("pools a tensor without dimensions of space")
    dims = len(x.shape) - 1
    k = _two(kernel, dims)
    s = k if stride is None or stride == [] else _two(stride, dims)
    p = _two(padding, dims) if dims == 2 else (0, _two(padding, 1)[1])
    window = Window(x.sites, k, s, p, _two(dilation, dims))
    if ceil_mode:
        after, sizes = window.after, (x.sites.height, x.sites.width)
        covered = [(n - 1) * s[i] + k[i] - 2 * p[i] for i, n in enumerate((after.height, after.width))]
        if any(c < n for c, n in zip(covered, sizes, strict=True)):
            raise ValueError("pools with ceil_mode windows that hang over the border, which has no map here")
    return window


def _mean(
    walk: Walk, name: str, x: Field, dim: Any = None, keepdim: bool = False, *, axis: Any = None, dtype: Any = None
) -> Field:
    dim = axis if dim is None else dim
    dims = tuple(sorted(d % (len(x.shape) + 1) for d in ([dim] if isinstance(dim, int) else dim or ())))
    if not dims or dims[0] < 2:
        raise ValueError(f"takes a mean over dimensions {dim}; there is a map for means over sites")
    return pooling.mean(walk, x, dims, keepdim=keepdim)


def flatten_rule(walk: Walk, name: str, x: Field, start_dim: int = 0, end_dim: int = -1) -> Field:
    if start_dim != 1 or end_dim % (len(x.shape) + 1) != len(x.shape):
        raise ValueError(f"flattens dimensions {start_dim} to {end_dim}; there is a map for all but the batch")
    return pooling.reshape(walk, x, (math.prod(x.shape),))


def _view(walk: Walk, name: str, x: Field, *shape: Any) -> Field:
    wanted = list(shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list, torch.Size)) else shape)
    if wanted.count(-1) == 1:
        known = math.prod(n for n in wanted if n != -1)
        wanted[wanted.index(-1)] = math.prod(x.size()) // max(known, 1)
    if wanted[0] != x.sites.batch or math.prod(wanted) != math.prod(x.size()):
        raise ValueError(
            f"reshapes (N, {', '.join(map(str, x.shape))}) to {tuple(shape)}, which mixes samples or does not fit"
        )
    return pooling.reshape(walk, x, tuple(int(n) for n in wanted[1:]))


def _squeeze(walk: Walk, name: str, x: Field, dim: Any = None) -> Field:
    dims = range(1, len(x.shape) + 1) if dim is None else ([dim] if isinstance(dim, int) else dim)
    drop = {d % (len(x.shape) + 1) for d in dims}
    shape = tuple(n for i, n in enumerate(x.shape, 1) if not (i in drop and n == 1))
    return pooling.reshape(walk, x, shape)


def _add(walk: Walk, name: str, left: Any, right: Any, alpha: float = 1.0) -> Any:
    if isinstance(left, Field) and isinstance(right, Field):
        return joining.add(walk, name, left, right if alpha == 1 else elementwise.scale(walk, right, alpha))
    field, other = (left, right) if isinstance(left, Field) else (right, left)
    return elementwise.shift(walk, field, _constant(walk, other) * alpha)


def _subtract(walk: Walk, name: str, left: Any, right: Any) -> Any:
    if isinstance(right, Field):
        return _add(walk, name, left, elementwise.scale(walk, right, -1.0))
    return elementwise.shift(walk, left, -_constant(walk, right))


def _multiply(walk: Walk, name: str, left: Any, right: Any) -> Any:
    if isinstance(left, Field) and isinstance(right, Field):
        raise ValueError("multiplies two tensors of the network (a gate, attention), which has no map here")
    field, other = (left, right) if isinstance(left, Field) else (right, left)
    return elementwise.scale(walk, field, _constant(walk, other))


def _divide(walk: Walk, name: str, left: Any, right: Any) -> Any:
    if isinstance(right, Field):
        raise ValueError("divides by a tensor of the network, which has no map here")
    return elementwise.scale(walk, left, 1 / _constant(walk, right))


def _constant(walk: Walk, value: Any) -> float:
    if isinstance(value, Tensor):
        if walk.trains(value) or value.grad_fn is not None:
            raise ValueError(
                "combines values with a trained number, whose part of lambda has no map here. Leave it out with "
                "parameters= or requires_grad_(False), or measure this network (ns.measure)"
            )
        if value.numel() != 1:
            raise ValueError(
                f"combines a tensor of shape {tuple(value.shape)} elementwise; there is a map for one number"
            )
        return float(value.detach())
    return float(value)


def _concatenate(walk: Walk, name: str, tensors: Any, dim: int = 0) -> Field:
    if dim != 1 and not (dim < 0 and dim + len(tensors[0].shape) + 1 == 1):
        raise ValueError(f"concatenates along dimension {dim}; there is a map for channels, dimension 1")
    return joining.concatenate(walk, list(tensors))


def dropout_rule(
    walk: Walk, name: str, x: Field, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Field:
    return elementwise.dropout(walk, x, p, whole_channels=False) if training else x


def channel_dropout_rule(
    walk: Walk, name: str, x: Field, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Field:
    return elementwise.dropout(walk, x, p, whole_channels=not x.flat) if training else x


def _same(walk: Walk, name: str, x: Any, *_: Any, **__: Any) -> Any:
    return x


def _apply(phi: Activation) -> Handler:
    return lambda walk, name, x, *_, **__: elementwise.activation(walk, name, x, phi)


def _parametric(make: Callable[..., Tensor]) -> Handler:
    """An elementwise function with settings."""

    def handler(walk: Walk, name: str, x: Field, *args: Any, inplace: bool = False, **kwargs: Any) -> Field:
        if make is F.leaky_relu:
            return elementwise.activation(walk, name, x, leaky(*(args[:1] or (kwargs.get("negative_slope", 0.01),))))
        phi = Activation(make.__name__, lambda z: make(z.clone(), *args, **kwargs), monotone=False)
        return elementwise.activation(walk, name, x, phi)

    return handler


PLAIN = {
    "relu": RELU,
    "relu_": RELU,
    "tanh": Activation("tanh", torch.tanh),
    "sigmoid": Activation("sigmoid", torch.sigmoid),
    "erf": Activation("erf", torch.erf),
    "sin": Activation("sin", torch.sin, monotone=False),
    "cos": Activation("cos", torch.cos, monotone=False),
    "abs": Activation("abs", torch.abs, line=(-1.0, 2.0), monotone=False),
}
_SETTABLE = (
    "leaky_relu",
    "elu",
    "gelu",
    "silu",
    "softplus",
    "relu6",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "mish",
    "celu",
    "selu",
    "softsign",
    "logsigmoid",
)

_BY_NAME: dict[str, Handler] = {
    "linear": linear_rule,
    "conv1d": convolution_rule,
    "conv2d": convolution_rule,
    "conv3d": convolution_rule,
    "batch_norm": batch_norm_rule,
    "layer_norm": layer_norm_rule,
    "group_norm": group_norm_rule,
    "avg_pool1d": average_rule,
    "avg_pool2d": average_rule,
    "adaptive_avg_pool1d": adaptive_rule,
    "adaptive_avg_pool2d": adaptive_rule,
    "max_pool1d": maximum_rule,
    "max_pool2d": maximum_rule,
    "mean": _mean,
    "flatten": flatten_rule,
    "view": _view,
    "reshape": _view,
    "squeeze": _squeeze,
    "add": _add,
    "add_": _add,
    "iadd": _add,
    "sub": _subtract,
    "sub_": _subtract,
    "isub": _subtract,
    "mul": _multiply,
    "mul_": _multiply,
    "imul": _multiply,
    "truediv": _divide,
    "div": _divide,
    "div_": _divide,
    "itruediv": _divide,
    "cat": _concatenate,
    "concat": _concatenate,
    "dropout": dropout_rule,
    "dropout1d": channel_dropout_rule,
    "dropout2d": channel_dropout_rule,
    "contiguous": _same,
    "clone": _same,
    "float": _same,
    "double": _same,
    "identity": _same,
    **{name: _apply(phi) for name, phi in PLAIN.items()},
    **{name: _parametric(getattr(F, name)) for name in _SETTABLE},
}

FUNCTIONS: dict[Any, Handler] = {
    getattr(place, name): handler
    for place in (torch, F, operator)
    for name, handler in _BY_NAME.items()
    if hasattr(place, name)
}
FUNCTIONS |= {
    torch.max_pool2d: maximum_rule,
    F.max_pool2d: maximum_rule,
    F.max_pool1d: maximum_rule,
    F.hardtanh_: _parametric(F.hardtanh),
}
METHODS = {name: handler for name, handler in _BY_NAME.items() if hasattr(Tensor, name)}
ATEN = dict(_BY_NAME) | {"batch_norm": _aten_batch_norm, "_unsafe_view": _view, "alias": _same, "to": _same}
