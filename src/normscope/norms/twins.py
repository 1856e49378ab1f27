"""Twins: layers of torch or normscope that compute the same as a foreign layer, with the same parameter objects."""

from collections.abc import Iterator

import torch
from torch import nn

from normscope.norms.formula_fit import Formula
from normscope.norms.kinds import InstanceNorm, RMSNorm
from normscope.norms.wrappers import EachPosition, Followed, LastDim, OwnScale, Wrapper


def base_of(norm_class: type[nn.Module]) -> type[nn.Module]:
    """The class of torch or normscope that a normalizer's class is or derives from."""
    return next(cls for cls in norm_class.__mro__ if cls.__module__.startswith(("torch.nn.", "normscope.")))


def alone_or_followed(plain: nn.Module, after: dict[str, nn.Module]) -> list[nn.Module]:
    """Two candidates: `plain` alone, and `plain` followed by the layer's children (dropout, activation)."""
    fits = after and after.keys().isdisjoint(("norm", "after"))
    return [plain, Followed(plain, after)] if fits else [plain]


def of_bases(layer: nn.Module) -> Iterator[tuple[nn.Module, int, bool]]:
    """Candidates for a subclass of a known normalizer: twin, number of channels, whether channels are last."""
    plain = _as(base_of(type(layer)), layer)
    if not isinstance(layer, (nn.LayerNorm, nn.RMSNorm)):
        channels = layer.num_channels if isinstance(layer, nn.GroupNorm) else layer.num_features
        assert isinstance(channels, int)
        yield plain, channels, False
    elif len(layer.normalized_shape) == 1:
        yield plain, layer.normalized_shape[0], True
        yield _at_each_position(layer), layer.normalized_shape[0], False


def _as(base: type[nn.Module], layer: nn.Module) -> nn.Module:
    """A layer of class `base` with the attributes and tensors of `layer`."""
    plain: nn.Module = object.__new__(base)
    vars(plain).update(vars(nn.Module()))
    vars(plain).update(
        (name, value)
        for name, value in vars(layer).items()
        if name not in vars(nn.Module()) or name in ("training", "_parameters", "_buffers")
    )
    plain._parameters, plain._buffers = dict(layer._parameters), dict(layer._buffers)
    return plain


def _at_each_position(layer: nn.LayerNorm | nn.RMSNorm) -> nn.Module:
    (channels,) = layer.normalized_shape
    norm: nn.Module
    if isinstance(layer, nn.LayerNorm):
        norm = nn.GroupNorm(1, channels, layer.eps, layer.weight is not None)
        norm.register_parameter("bias", layer.bias)
    else:
        # torch's RMSNorm without eps takes that of the input's dtype.
        like = torch.float32 if layer.weight is None else layer.weight.dtype
        eps = torch.finfo(like).eps if layer.eps is None else layer.eps
        norm = RMSNorm(channels, eps, layer.weight is not None)
    norm.register_parameter("weight", layer.weight)
    return EachPosition(norm)


def of_formula(layer: nn.Module, channels: int, formula: Formula) -> nn.Module:
    """The twin that computes the formula with the parameters of `layer`."""
    own = dict(layer.named_parameters())
    weight, bias = (None if name is None else (name, own[name]) for name in (formula.weight, formula.bias))
    rms = formula.kind.startswith("RMS")
    plain = not formula.offset and not (rms and bias) and (weight is not None or bias is None)
    given = ((weight, "weight"), (bias, "bias"))
    inside = plain and all(p is None or (p[0] == name and p[1].shape == (channels,)) for p, name in given)
    affine = inside and weight is not None
    norm: nn.Module
    if rms:
        norm = RMSNorm(channels, formula.eps, affine)
    elif formula.kind.startswith("Instance"):
        norm = InstanceNorm(channels, formula.eps, affine)
    else:
        norm = nn.GroupNorm(formula.groups, channels, formula.eps, affine)
    if affine:
        for parameter, name in given[: 1 if rms else 2]:
            norm.register_parameter(name, None if parameter is None else parameter[1])
    elif weight or bias:
        norm = OwnScale(norm, weight, bias, formula.offset)
    if formula.last:
        return LastDim(norm)
    return EachPosition(norm) if formula.kind.endswith("position") else norm


def set_mode(twin: nn.Module, training: bool) -> nn.Module:
    """Set train or eval mode for the new parts of a twin; children taken over from the layer keep their mode."""
    part = twin
    while isinstance(part, Wrapper):
        part.training = training
        part = part.norm
    part.training = training
    return twin
