"""Layers with weights and normalizers, with the arguments that torch's functions have."""

from typing import Any

from torch import Tensor

from normscope.prediction import linear, normalizers
from normscope.prediction.field import Field
from normscope.prediction.refusal import UnknownOperation
from normscope.prediction.site_rules import two
from normscope.prediction.walk import Walk

# Channels in a group of GroupNorm below which lambda was seen to be off.
_FEW = 8


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
        raise UnknownOperation("is a convolution in three dimensions, which has no map here")
    d = two(dilation, dims)
    kernel = (1, *weight.shape[2:])[-2:]
    if padding == "valid":
        padding = 0
    if padding == "same":
        span = [d[i] * (kernel[i] - 1) for i in range(2)]
        if any(s % 2 for s in span):
            raise UnknownOperation("pads 'same' on one side more than on the other, which has no map here")
        padding = (span[0] // 2, span[1] // 2)
    pad = (
        two(padding, dims)
        if dims == 2 or (isinstance(padding, tuple) and len(padding) == 2)
        else (0, two(padding, 1)[1])
    )
    return linear.convolution(
        walk, name, x, weight, bias, stride=two(stride, dims), padding=pad, dilation=d, groups=groups
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


def aten_batch_norm_rule(
    walk: Walk, name: str, x: Field, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any
) -> Field:
    return batch_norm_rule(walk, name, x, mean, var, weight, bias, training, rest[0], rest[1])


def layer_norm_rule(
    walk: Walk, name: str, x: Field, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Field:
    if not x.flat or (x.sites.count > 1 and x.sites.form != "samples"):
        raise UnknownOperation(
            "normalizes the last dimensions of images; there is a map for (N, features) and for GroupNorm(1, C)"
        )
    normalizers.check_features(x, shape)
    return normalizers.sample_norm(walk, name, x, weight, bias, eps, centre=True, kind="LayerNorm")


def group_norm_rule(
    walk: Walk, name: str, x: Field, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Field:
    if x.channels % groups:
        raise ValueError(f"normalizes {groups} groups and gets {x.channels} channels, which they do not divide")
    each, alone = x.channels // groups, x.sites.count == 1
    if each == 1:
        raise UnknownOperation("normalizes every channel of a sample by itself (InstanceNorm), which has no map here")
    if each == 2 and alone:
        raise UnknownOperation("normalizes two values by each other, so that they become 1 and -1; it has no map here")
    if each < _FEW:
        walk.warn(
            f"{name}: groups of {each} channels are few for a theory of many, in which statistics do not vary from "
            "sample to sample: lambda was measured at 0.34 to 0.91 times the answer on images (groups of 2 and 4) and "
            "at 1.7 to 65 times on vectors (groups of 4 and 3). Use fewer groups, or measure instead.",
            (0.9, 65.0) if alone else (0.3, 1.2),
        )
    return normalizers.sample_norm(walk, name, x, weight, bias, eps, centre=True, kind="GroupNorm")
