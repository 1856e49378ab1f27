"""Which rule a function or method has, by what torch calls it.

A handler takes the walk, the name of the layer, and the operation's own arguments, with a Field for every tensor of the
network. An operation that is not here is refused by name.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.prediction import elementwise, joining
from normscope.prediction import layer_rules as layers
from normscope.prediction import site_rules as sites
from normscope.prediction.field import Field
from normscope.prediction.refusal import UnknownOperation
from normscope.prediction.walk import Walk
from normscope.theory.gaussian import RELU, Activation

Handler = Callable[..., Any]


def leaky(slope: float) -> Activation:
    return Activation("leaky relu", lambda z: F.leaky_relu(z, slope), line=(slope, 1 - slope), monotone=slope >= 0)


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
        raise UnknownOperation("multiplies two tensors of the network (a gate, attention), which has no map here")
    field, other = (left, right) if isinstance(left, Field) else (right, left)
    return elementwise.scale(walk, field, _constant(walk, other))


def _divide(walk: Walk, name: str, left: Any, right: Any) -> Any:
    if isinstance(right, Field):
        raise UnknownOperation("divides by a tensor of the network, which has no map here")
    divisor = _constant(walk, right)
    if divisor == 0:
        raise ValueError("divides by zero")
    return elementwise.scale(walk, left, 1 / divisor)


def _constant(walk: Walk, value: Any) -> float:
    if isinstance(value, Tensor):
        if walk.trains(value) or value.grad_fn is not None:
            raise UnknownOperation(
                "combines values with a trained number, whose part of lambda has no map here. Leave it out with "
                "parameters= or requires_grad_(False), or measure this network (ns.measure)"
            )
        if value.numel() != 1:
            raise UnknownOperation(
                f"combines a tensor of shape {tuple(value.shape)} elementwise; there is a map for one number"
            )
        return float(value.detach())
    return float(value)


def _concatenate(walk: Walk, name: str, tensors: Any, dim: int = 0) -> Field:
    if not all(tensor.shape for tensor in tensors):
        raise UnknownOperation("concatenates the samples of tensors (N,), which has no map here")
    if dim != 1 and not (dim < 0 and dim + len(tensors[0].shape) + 1 == 1):
        raise UnknownOperation(f"concatenates along dimension {dim}; there is a map for channels, dimension 1")
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
    "linear": layers.linear_rule,
    "conv1d": layers.convolution_rule,
    "conv2d": layers.convolution_rule,
    "conv3d": layers.convolution_rule,
    "batch_norm": layers.batch_norm_rule,
    "layer_norm": layers.layer_norm_rule,
    "group_norm": layers.group_norm_rule,
    "avg_pool1d": sites.average_rule,
    "avg_pool2d": sites.average_rule,
    "adaptive_avg_pool1d": sites.adaptive_rule,
    "adaptive_avg_pool2d": sites.adaptive_rule,
    "max_pool1d": sites.maximum_rule,
    "max_pool2d": sites.maximum_rule,
    "mean": sites.mean_rule,
    "flatten": sites.flatten_rule,
    "view": sites.view_rule,
    "reshape": sites.view_rule,
    "squeeze": sites.squeeze_rule,
    "unsqueeze": sites.unsqueeze_rule,
    "select": sites.select_rule,
    "getitem": sites.index_rule,
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
    torch.max_pool2d: sites.maximum_rule,
    F.max_pool2d: sites.maximum_rule,
    F.max_pool1d: sites.maximum_rule,
    F.hardtanh_: _parametric(F.hardtanh),
}
METHODS = {name: handler for name, handler in _BY_NAME.items() if hasattr(Tensor, name)}
ATEN = dict(_BY_NAME) | {
    "batch_norm": layers.aten_batch_norm_rule,
    "_unsafe_view": sites.view_rule,
    "alias": _same,
    "to": _same,
}
