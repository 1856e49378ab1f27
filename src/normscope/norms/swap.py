"""Another normalizer in the same network: the controlled comparison, on any module."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.choices import check_choice
from normscope.norms._places import also_held_by, replace
from normscope.norms.kinds import NORM_NAMES, Identity, RMSNorm, make_norm
from normscope.norms.lp import _LpLayer
from normscope.norms.noisy import CovariateNoise

NORM_LAYERS = (
    nn.modules.batchnorm._NormBase,
    _LpLayer,
    CovariateNoise,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    RMSNorm,
)


@dataclass(frozen=True)
class Swap:
    """One layer exchanged: where it was, what it was and is, which of its tensors are still in use."""

    name: str
    old: str
    new: str
    kept: tuple[str, ...]


class LastDim(nn.Module):
    """A channel-second normalizer for inputs (..., C) with channels last, every position a sample."""

    eps = Identity.eps

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.reshape(-1, x.shape[-1]))
        return y.view(x.shape)


def swap_norms(model: nn.Module, to: str, **options: Any) -> list[Swap]:
    """Replaces every normalizer of `model`, in place, and says what was swapped.

    Sources: BatchNorm, InstanceNorm, GroupNorm, LayerNorm and RMSNorm of torch, and the layers here. The affine
    parameters stay the very same objects (an optimizer that holds them goes on) where the new layer has them
    per channel, as the old had; running statistics stay between "batch" and "noisy". "none" and "noise" have no
    affine part: a layer before them that was built without a bias then has none. A layer over the last
    dimension (LayerNorm(C)) takes batch statistics over all positions; one with a name in 1d, 2d or 3d (the
    LayerNorm2d of ConvNeXt) has its channels second, as every other. Hooks stay with the old layers. If one layer
    cannot be swapped, none is.

    Args:
        model: any module; a normalizer used in two places stays one layer in two places.
        to: none, batch, layer, group, instance, rms, l1, l2, linf, noisy or noise.
        options: for the new layers, e.g. eps=, momentum=, groups=, centered=, sync=. seed= is one for the model;
            every noise draws its own from it.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        >>> swap_norms(model, "l1")
        [Swap(name='1', old='BatchNorm1d', new='LpNorm1d', kept=('weight', 'bias'))]
    """
    check_choice("normalizer", to, NORM_NAMES)
    if isinstance(model, (*NORM_LAYERS, LastDim)):
        raise ValueError(
            f"swap_norms changes the layers inside a model, and {type(model).__name__} is itself a layer. "
            "Wrap it first: nn.Sequential(layer)."
        )
    places = _outermost(model)
    if not places:
        raise ValueError(f"{type(model).__name__} has no normalizer to swap. Build it with one, e.g. norm='batch'.")
    if to == "none" and options:
        raise TypeError(f"'none' has no layer to give options to; got {', '.join(options)}.")
    names: dict[nn.Module, str] = {}
    for name, old in places.items():
        names.setdefault(old, name)
    seeds = _seeds(options.pop("seed"), len(names)) if options.get("seed") is not None else []
    each = [options | {"seed": seed} for seed in seeds] or [options] * len(names)
    replacements = {
        old: _replacement(model, name, old, to, chosen) for (old, name), chosen in zip(names.items(), each, strict=True)
    }
    for old, (new, _) in replacements.items():
        replace(model, old, new)
    return [
        Swap(name, _describe(old), _describe(replacements[old][0]), replacements[old][1])
        for name, old in places.items()
    ]


def _seeds(seed: int, n: int) -> list[int]:
    """One per layer: with a common seed all layers would shift together."""
    generator = torch.Generator().manual_seed(seed)
    seeds: list[int] = torch.randint(2**62, (n,), generator=generator).tolist()
    return seeds


def _outermost(model: nn.Module) -> dict[str, nn.Module]:
    """Normalizers by name; the noise inside a noisy BatchNorm is a part of it, and LastDim of what it holds."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        inside = any(name.startswith(f"{outer}.") for outer in found)
        if isinstance(module, (*NORM_LAYERS, LastDim)) and not inside:
            found[name] = module
    return found


def _describe(layer: nn.Module) -> str:
    return f"LastDim({type(layer.norm).__name__})" if isinstance(layer, LastDim) else type(layer).__name__


def _replacement(
    model: nn.Module, name: str, old: nn.Module, to: str, options: dict[str, Any]
) -> tuple[nn.Module, tuple[str, ...]]:
    if holder := also_held_by(model, old):
        raise ValueError(
            f"{name} is also held in the plain container {holder}, which would go on using it. Make that an "
            "nn.ModuleList or nn.ModuleDict, or take the layer out of it."
        )
    if "Lazy" in type(old).__name__:
        raise ValueError(f"{name} is a {type(old).__name__} and does not know its channels yet. Run one batch first.")
    last_dim = isinstance(old, LastDim) or _over_last_dim(old)
    source = old.norm if isinstance(old, LastDim) else old
    assert isinstance(source, nn.Module)
    kept: tuple[str, ...] = ()
    arguments = _arguments(source, to, next(model.parameters(), torch.empty(0))) | options
    try:
        new = make_norm(to, _channels(name, source, to), dim=_dim(source), **arguments)
    except TypeError as error:
        raise TypeError(f"{to!r} does not take all of the options {', '.join(options)}: {error}.") from error
    tensors = [*source.named_parameters(recurse=False), *source.named_buffers(recurse=False)]
    for key, tensor in tensors:
        theirs = getattr(new, key, None)
        if isinstance(theirs, Tensor) and theirs.shape == tensor.shape and _means_the_same(key, source, new):
            setattr(new, key, tensor)
            kept += (key,)
    if "weight" in kept and getattr(source, "bias", None) is None and hasattr(new, "bias"):
        new.register_parameter("bias", None)
    new.train(old.training)
    if last_dim and to != "none":
        if to == "instance":
            raise ValueError(
                f"{name} normalizes the last dimension of its input, where 'instance' has no space to take "
                "statistics over. Choose another normalizer for this model."
            )
        new = LastDim(new)
        new.training = old.training
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
    if _over_last_dim(old):
        return 1
    tail = type(old).__name__[-2:]
    return int(tail[0]) if tail in ("1d", "2d", "3d") else None


def _over_last_dim(old: nn.Module) -> bool:
    return isinstance(old, (nn.LayerNorm, nn.RMSNorm)) and not type(old).__name__.endswith(("1d", "2d", "3d"))


def _arguments(old: nn.Module, to: str, fallback: Tensor) -> dict[str, Any]:
    """Constructor arguments that mean the same in the old layer and the new one."""
    tensors = [*old.parameters(), *(b for b in old.buffers() if b.is_floating_point())]
    like = tensors[0] if tensors else fallback
    arguments: dict[str, Any] = {"device": like.device}
    noise = getattr(old, "noise", old)
    if isinstance(noise, CovariateNoise) and to in ("noisy", "noise"):
        arguments |= noise.constants | {"seed": noise.seed}
    if to == "noise":
        return arguments
    arguments |= {"dtype": like.dtype, "affine": getattr(old, "weight", None) is not None}
    batch = isinstance(old, nn.modules.batchnorm._BatchNorm)
    if batch and to in ("batch", "noisy"):
        sync = isinstance(old, nn.SyncBatchNorm) or getattr(old, "sync", False)
        arguments |= {"track_running_stats": old.track_running_stats, "sync": sync}
    eps = None if isinstance(old, _LpLayer) else getattr(old, "eps", None)
    if eps is not None and to not in ("l1", "l2", "linf"):
        arguments["eps"] = eps
    if to == "group" and isinstance(old, nn.GroupNorm) and old.num_groups > 1:
        arguments["groups"] = old.num_groups
    if (batch or isinstance(old, _LpLayer)) and to in ("batch", "noisy", "l1", "l2", "linf"):
        arguments["momentum"] = old.momentum
    return arguments
