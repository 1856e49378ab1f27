"""The rules of LayerNorm, GroupNorm and RMSNorm, which normalize each sample by its own statistics."""

from typing import Any

import torch
from torch import Tensor, nn

from normscope.norms.kinds import RMSNorm
from normscope.prediction.kernels.cotangent import Cotangent
from normscope.prediction.kernels.field import Field, FieldPart
from normscope.prediction.refusals import UnknownOperation, check_channels
from normscope.prediction.rules.gamma_beta import (
    directions,
    gamma_beta,
    held_pair_before,
    mean_of_squares,
    tangent_after,
)
from normscope.prediction.rules.registry import rule
from normscope.prediction.walk import Walk
from normscope.theory.site_pairs import average

# Channels in a group of GroupNorm below which lambda was seen to be off.
_FEWEST_CHANNELS = 8


@rule("layer_norm", modules=[nn.LayerNorm], settings=lambda layer, x: _shaped(layer) | {"bias": layer.bias})
def layer_norm(
    walk: Walk, name: str, x: Field, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Field:
    """LayerNorm of (N, features), with the arguments of torch.nn.functional.layer_norm."""
    if not x.flat or x.flattened_image:
        raise UnknownOperation(
            "normalizes the last dimensions of images; there is a map for (N, features) and for GroupNorm(1, C)"
        )
    _check_features(x, shape)
    return sample_norm(walk, name, x, weight, bias, eps, centre=True, layer_type="LayerNorm")


def _shaped(layer: nn.LayerNorm | nn.RMSNorm) -> dict[str, Any]:
    return {"shape": layer.normalized_shape, "weight": layer.weight, "eps": layer.eps}


def _group_settings(layer: nn.GroupNorm, x: Field) -> dict[str, Any]:
    check_channels(layer.num_channels, x)
    return {"groups": layer.num_groups, "weight": layer.weight, "bias": layer.bias, "eps": layer.eps}


@rule("group_norm", modules=[nn.GroupNorm], settings=_group_settings)
def group_norm(
    walk: Walk, name: str, x: Field, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Field:
    """GroupNorm, with the arguments of torch.nn.functional.group_norm; groups of one or two values are refused."""
    if x.channels % groups:
        raise ValueError(f"normalizes {groups} groups and gets {x.channels} channels, which they do not divide")
    each, alone = x.channels // groups, x.sites.count == 1
    if each == 1:
        raise UnknownOperation("normalizes every channel of a sample by itself (InstanceNorm), which has no map here")
    if each == 2 and alone:
        raise UnknownOperation("normalizes two values by each other, so that they become 1 and -1; it has no map here")
    if each < _FEWEST_CHANNELS:
        walk.remarks.warn(
            f"{name}: groups of {each} channels are few for a theory of many, in which statistics do not vary from "
            "sample to sample: lambda was measured at 0.34 to 0.91 times the answer on images (groups of 2 and 4) and "
            "at 1.7 to 65 times on vectors (groups of 4 and 3). Use fewer groups, or measure instead.",
            (0.9, 65.0) if alone else (0.3, 1.2),
        )
    return sample_norm(walk, name, x, weight, bias, eps, centre=True, layer_type="GroupNorm")


@rule(modules=[nn.RMSNorm], settings=lambda layer, x: _shaped(layer))
def rms_norm(walk: Walk, name: str, x: Field, shape: Any, weight: Tensor | None, eps: float | None) -> Field:
    """torch.nn.RMSNorm of (N, features)."""
    if not x.flat or x.flattened_image:
        raise UnknownOperation(
            "normalizes the last dimensions of images; there is a map for (N, features) and for normscope's RMSNorm"
        )
    _check_features(x, shape)
    return rms_norm_of_channels(walk, name, x, weight, eps)


def _rms_settings(layer: RMSNorm, x: Field) -> dict[str, Any]:
    check_channels(layer.num_features, x)
    return {"weight": layer.weight, "eps": layer.eps}


@rule(modules=[RMSNorm], settings=_rms_settings)
def rms_norm_of_channels(walk: Walk, name: str, x: Field, weight: Tensor | None, eps: float | None) -> Field:
    """normscope's RMSNorm over the channels and sites of each sample."""
    eps = eps if eps is not None else 1e-7
    return sample_norm(walk, name, x, weight, None, eps, centre=False, layer_type="RMSNorm")


def _check_features(x: Field, normalized_shape: Any) -> None:
    """Refuse a normalizer of a last dimension of another size than x has."""
    wanted = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if wanted != x.shape:
        raise ValueError(f"normalizes a last dimension of {', '.join(map(str, wanted))} and gets {x.shape[0]} features")


def sample_norm(
    walk: Walk,
    name: str,
    x: Field,
    gamma: Tensor | None,
    beta: Tensor | None,
    eps: float,
    *,
    centre: bool,
    layer_type: str,
) -> Field:
    r"""LayerNorm, GroupNorm, RMSNorm: each sample by its own statistics over many channels (and sites).

        K' = gamma^2 K_c / (s(x) s(y)) + beta^2       s^2 = mean_a K_c(x, a; x, a) + eps

    With many channels the statistics are constants of the weights; the direction that their gradient takes out is one
    of as many as there are channels, and is left in.
    """
    affine = gamma_beta(walk, name, x, gamma, beta, eps)
    sites, total = x.sites, x.channels
    mean = sum(part.mean * (part.channels / total) for part in x.parts)
    assert isinstance(mean, Tensor)
    middle = sites.image_mean(mean) * (1 if centre else 0)

    def moved(part: FieldPart) -> Tensor:
        return (
            part.kernel - sites.outer(middle, part.mean) - sites.outer(part.mean, middle) + sites.outer(middle, middle)
        )

    kernels = [moved(part) for part in x.parts]
    square = sum(sites.diagonal(k) * (p.channels / total) for k, p in zip(kernels, x.parts, strict=True))
    assert isinstance(square, Tensor)
    square = sites.image_mean(square) + eps
    rate = sites.outer(square.rsqrt(), square.rsqrt())
    row = walk.row(name, layer_type, variance=average(square))
    hats = [k * rate for k in kernels]
    parts = tuple(
        FieldPart(
            p.channels,
            g2 * hat + mean_of_squares(b),
            (p.mean - middle) * square.rsqrt() * g2**0.5 + average(b),
            tangent_after(walk, p.tangent * (g2 * rate), sites.different_samples(hat), gamma, beta),
            p.noise * (g2 / average(square)) ** 2,
        )
        for p, hat, (g2, b) in zip(x.parts, hats, affine, strict=True)
    )
    out = Field(sites, parts, x.shape, x.gaussian, x.roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        row.columns = directions(walk, out, gamma, beta)
        sent_held = []
        for hat, (g2, _), g, held in zip(hats, affine, cotangent.g, cotangent.held_gradient_and_drift, strict=True):
            if walk.trains(gamma):
                row.add(sites, g * hat, cotangent.spread)
            if walk.trains(beta):
                row.add(sites, g, cotangent.spread)
            sent_held.append(held_pair_before(walk, held, g2 * rate, g2 * rate, rate, gamma))
        sent = tuple(g * g2 * rate for g, (g2, _) in zip(cotangent.g, affine, strict=True))
        return [Cotangent(sent, tuple(map(torch.zeros_like, sent)), tuple(sent_held), cotangent.spread)]

    return walk.tape.record(out, [x], back, nonlinear=f"{name!r} ({layer_type})")
