"""Build the layer that replaces a normalizer, with the old tensors that mean the same in both."""

from typing import Any

import torch
from torch import Tensor, nn

from normscope.norms.kinds import NORM_KINDS, Identity, RMSNorm, make_norm
from normscope.norms.lp import LpNormLayer
from normscope.norms.noisy import CovariateNoise
from normscope.norms.wrappers import EachPosition, Followed, LastDim, OwnScale, core

# An eps up to this size only guards against division by zero. It is not carried over to batch statistics, where so
# small an eps would amplify rounding errors.
_GUARD = 1e-20


def replacement(
    model: nn.Module, name: str, old: nn.Module, to: str, options: dict[str, Any]
) -> tuple[nn.Module, tuple[str, ...]]:
    """The new layer for `old`, and the names of the old tensors it keeps.

    Args:
        model: the network.
        name: the layer's name, for messages.
        old: a layer of torch or normscope, possibly in wrappers.
        to: the kind of the new layer.
        options: arguments of the new layer's constructor.
    """
    if isinstance(old, Followed):
        new, kept = replacement(model, name, old.norm, to, options)
        return _like(old, Followed(new, old.children_after)), kept
    source = core(old)
    last_dim = isinstance(old, LastDim) or (isinstance(source, (nn.LayerNorm, nn.RMSNorm)))
    if last_dim and NORM_KINDS[to].needs_space:
        raise ValueError(
            f"{name} normalizes the last dimension of its input, where {to!r} has no space to take "
            "statistics over. Choose another normalizer for this model."
        )
    new, kept = _scaled(model, name, old, to, options)
    new.train(old.training)
    if isinstance(new, Identity):
        new.stand_in(getattr(source, "weight", None))
        return new, kept
    if last_dim:
        return _like(old, LastDim(new)), kept
    if isinstance(old, EachPosition) and NORM_KINDS[to].each_position:
        return _like(old, EachPosition(new)), kept
    return new, kept


def _like(old: nn.Module, wrapper: nn.Module) -> nn.Module:
    wrapper.training = old.training
    return wrapper


def _scaled(
    model: nn.Module, name: str, old: nn.Module, to: str, options: dict[str, Any]
) -> tuple[nn.Module, tuple[str, ...]]:
    """The new layer with the tensors of the old one that mean the same in both."""
    source, kind = core(old), NORM_KINDS[to]
    own = next((part for part in (old, getattr(old, "norm", None)) if isinstance(part, OwnScale)), None)
    like = next((tensor for part in (old, model) for tensor in part.parameters()), torch.empty(0))
    arguments = _arguments(source, to, like) | options
    try:
        new = make_norm(to, _channels(name, source, to), dim=_dim(source), **arguments)
    except TypeError as error:
        raise TypeError(f"{to!r} does not take all of the options {', '.join(options)}: {error}.") from error
    kept: tuple[str, ...] = ()
    tensors = [*source.named_parameters(recurse=False), *source.named_buffers(recurse=False)]
    for key, tensor in tensors:
        theirs = getattr(new, key, None)
        if isinstance(theirs, Tensor) and theirs.shape == tensor.shape and _means_the_same(key, source, new):
            setattr(new, key, tensor)
            kept += (key,)
    if "weight" in kept and getattr(source, "bias", None) is None and hasattr(new, "bias"):
        new.register_parameter("bias", None)
    if own is not None and kind.has_weight:
        weight, bias = own.named_affine
        # A kind without bias gives none to the new layer, but an RMSNorm layer that had one keeps it.
        new = OwnScale(new, weight, bias if kind.has_bias or isinstance(source, RMSNorm) else None, own.offset)
        kept = tuple(new._parameters)
    return new, kept


def _means_the_same(key: str, old: nn.Module, new: nn.Module) -> bool:
    if key in ("weight", "bias"):
        return True
    batch = nn.modules.batchnorm._BatchNorm
    return isinstance(old, batch) and isinstance(new, batch)


def _channels(name: str, old: nn.Module, to: str) -> int:
    if isinstance(old, nn.GroupNorm):
        return old.num_channels
    if isinstance(old, (nn.LayerNorm, nn.RMSNorm)):
        if len(old.normalized_shape) != 1 and to != "none":
            raise ValueError(
                f"{name} normalizes over the last {len(old.normalized_shape)} dimensions {tuple(old.normalized_shape)} "
                "together, with a weight for each element; only LayerNorm(C) and RMSNorm(C) can be swapped."
            )
        return old.normalized_shape[-1]
    channels: int = old.num_features  # type: ignore[assignment]
    return channels


def _dim(old: nn.Module) -> int | None:
    """Dimensions of space from the class's name (BatchNorm2d: 2); positions over the last dimension: 1."""
    if isinstance(old, (nn.LayerNorm, nn.RMSNorm)):
        return 1
    tail = type(old).__name__[-2:]
    return int(tail[0]) if tail in ("1d", "2d", "3d") else None


def _arguments(old: nn.Module, to: str, fallback: Tensor) -> dict[str, Any]:
    """The constructor arguments of the old layer that mean the same in the new one."""
    kind = NORM_KINDS[to]
    tensors = [*old.parameters(), *(b for b in old.buffers() if b.is_floating_point())]
    like = tensors[0] if tensors else fallback
    arguments: dict[str, Any] = {"device": like.device}
    noise = getattr(old, "noise", old)
    if isinstance(noise, CovariateNoise) and kind.takes_noise:
        arguments |= noise.constants | {"seed": noise.seed}
    if not kind.has_weight:
        return arguments
    arguments |= {"dtype": like.dtype, "affine": getattr(old, "weight", None) is not None}
    batch = isinstance(old, nn.modules.batchnorm._BatchNorm)
    if batch and kind.takes_running:
        sync = isinstance(old, nn.SyncBatchNorm) or getattr(old, "sync", False)
        arguments |= {"track_running_stats": old.track_running_stats, "sync": sync}
    eps = None if isinstance(old, LpNormLayer) else getattr(old, "eps", None)
    if isinstance(old, nn.RMSNorm) and eps is None and to == "rms":
        # The default of torch's RMSNorm.
        eps = torch.finfo(like.dtype).eps
    same = isinstance(old, (RMSNorm, nn.RMSNorm) if to == "rms" else nn.GroupNorm)
    if eps is not None and (eps > _GUARD or eps == 0 or same) and kind.takes_eps:
        arguments["eps"] = eps
    if kind.takes_groups and isinstance(old, nn.GroupNorm) and old.num_groups > 1:
        arguments["groups"] = old.num_groups
    if (batch or isinstance(old, LpNormLayer)) and kind.takes_momentum:
        arguments["momentum"] = old.momentum
    return arguments
