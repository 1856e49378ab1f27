"""Another normalizer in the same network: the controlled comparison, on any module."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.choices import check_choice
from normscope.norms._places import also_held_by, replace
from normscope.norms.finding import find_norms
from normscope.norms.kinds import NORM_NAMES, Identity, RMSNorm, make_norm
from normscope.norms.lp import _LpLayer
from normscope.norms.noisy import CovariateNoise
from normscope.norms.recognition import known
from normscope.norms.wrappers import EachPosition, Followed, LastDim, OwnScale, Wrapper, core


@dataclass(frozen=True)
class Swap:
    """One layer exchanged: where it was, what it was and is, which of its tensors are still in use.

    taken_for: what a layer that is none of torch's or ours was found to compute, or "".
    """

    name: str
    old: str
    new: str
    kept: tuple[str, ...]
    taken_for: str = field(default="", repr=False)

    def __str__(self) -> str:
        taken = f" (it computes {self.taken_for})" if self.taken_for else ""
        kept = f"keeps {', '.join(self.kept)}" if self.kept else "keeps no tensor"
        return f"{self.name}: {self.old}{taken} -> {self.new}, {kept}"


class Swaps(list[Swap]):
    """The layers exchanged; `left` names those that stay as they were, with the reason. `print` says both in words."""

    def __init__(self, swaps: Iterable[Swap], left: Mapping[str, str]) -> None:
        super().__init__(swaps)
        self.left = dict(left)

    def __str__(self) -> str:
        lines = [f"{len(self)} exchanged:", *(f"  {swap}" for swap in self)]
        if self.left:
            lines += [f"{len(self.left)} left as they were:", *(f"  {n}: {why}" for n, why in self.left.items())]
        return "\n".join(lines)


def swap_norms(model: nn.Module, to: str, **options: Any) -> Swaps:
    """Replaces every normalizer of `model`, in place, and says what was swapped and what was left.

    Sources: BatchNorm, InstanceNorm, GroupNorm, LayerNorm and RMSNorm of torch, and the layers here; besides, layers of
    other classes that compute one of these on a probe, such as the RMSNorm of a language model, ConvNeXt's LayerNorm2d
    or a BatchNorm with an activation inside. A layer that looks like a normalizer and computes none of these stays as
    it is: the result's `left` and a warning name it with the reason. A normalization that a forward computes without
    a module for it is not seen.

    The affine parameters stay the very same objects (an optimizer that holds them goes on) where the new layer has them
    per channel, as the old had; running statistics stay between "batch" and "noisy". "none" and "noise" have no
    affine part: a layer before them that was built without a bias then has none. A layer over the last
    dimension (LayerNorm(C)) takes batch statistics over all positions. One that took each position of (N, C, *space)
    for itself (LayerNorm2d) goes on so with "layer", "group" and "rms". Hooks stay with the old layers. If a layer of
    torch or of ours cannot be swapped, none is.

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
    if to == "none" and options:
        raise TypeError(f"'none' has no layer to give options to; got {', '.join(options)}.")
    found = find_norms(model)
    if model in found.layers.values():
        raise ValueError(
            f"swap_norms changes the layers inside a model, and {type(model).__name__} is itself a layer. "
            "Wrap it first: nn.Sequential(layer)."
        )
    left = {name: f"{_describe(model.get_submodule(name))}: {reason}" for name, reason in found.left.items()}
    if not found.layers:
        raise ValueError(_nothing_to_swap(model, left))
    names: dict[nn.Module, str] = {}
    for name, old in found.layers.items():
        names.setdefault(old, name)
    seeds = _seeds(options.pop("seed"), len(names)) if options.get("seed") is not None else []
    each = [options | {"seed": seed} for seed in seeds] or [options] * len(names)
    replacements: dict[nn.Module, tuple[nn.Module, tuple[str, ...]]] = {}
    for (old, name), chosen in zip(names.items(), each, strict=True):
        _check_place(model, name, old)
        replacements[old] = _replacement(model, name, found.twins.get(old, old), to, chosen)
    for old, (new, _) in replacements.items():
        replace(model, old, new)
    if left:
        total = len(left) + len(names)
        warnings.warn(f"swap_norms left {len(left)} of {total} layers as they were: {_listed(left)}.", stacklevel=2)
    return Swaps(
        (
            Swap(
                name, _describe(old), _describe(replacements[old][0]), replacements[old][1], found.formulas.get(old, "")
            )
            for name, old in found.layers.items()
        ),
        left,
    )


def _nothing_to_swap(model: nn.Module, left: dict[str, str]) -> str:
    said = f"{type(model).__name__} has no normalizer to swap"
    if left:
        return f"{said}. Looked at and left: {_listed(left)}."
    return (
        f"{said}: no module in it is a normalization layer, by its class or by what it computes. A normalization that "
        "a forward computes without a module is not seen; make it a module."
    )


def _listed(left: dict[str, str]) -> str:
    """Each reason once, with the first layer that it holds for."""
    names = {why: [name for name, other in left.items() if other == why] for why in left.values()}
    more = {why: f" and {len(found) - 1} more" * (len(found) > 1) for why, found in names.items()}
    return "; ".join(f"{found[0]}{more[why]} ({why})" for why, found in names.items())


def _seeds(seed: int, n: int) -> list[int]:
    """One per layer: with a common seed all layers would shift together."""
    generator = torch.Generator().manual_seed(seed)
    seeds: list[int] = torch.randint(2**62, (n,), generator=generator).tolist()
    return seeds


def _describe(layer: nn.Module) -> str:
    return f"{type(layer).__name__}({_describe(layer.norm)})" if isinstance(layer, Wrapper) else type(layer).__name__


def _check_place(model: nn.Module, name: str, old: nn.Module) -> None:
    if holder := also_held_by(model, old):
        raise ValueError(
            f"{name} is also held in the plain container {holder}, which would go on using it. Make that an "
            "nn.ModuleList or nn.ModuleDict, or take the layer out of it."
        )
    if known(old) and "Lazy" in type(old).__name__:
        raise ValueError(f"{name} is a {type(old).__name__} and does not know its channels yet. Run one batch first.")


def _replacement(
    model: nn.Module, name: str, old: nn.Module, to: str, options: dict[str, Any]
) -> tuple[nn.Module, tuple[str, ...]]:
    """The new layer for `old`, a layer of torch's or ours, maybe in wrappers; and the names of the tensors it keeps."""
    if isinstance(old, Followed):
        new, kept = _replacement(model, name, old.norm, to, options)
        return _like(old, Followed(new, old.children_after)), kept
    source = core(old)
    last_dim = isinstance(old, LastDim) or (isinstance(source, (nn.LayerNorm, nn.RMSNorm)))
    if last_dim and to == "instance":
        raise ValueError(
            f"{name} normalizes the last dimension of its input, where 'instance' has no space to take "
            "statistics over. Choose another normalizer for this model."
        )
    new, kept = _scaled(model, name, old, to, options)
    new.train(old.training)
    if isinstance(new, Identity):
        new.stand_in(getattr(source, "weight", None))
        return new, kept
    if last_dim:
        return _like(old, LastDim(new)), kept
    if isinstance(old, EachPosition) and to in ("layer", "group", "rms"):
        return _like(old, EachPosition(new)), kept
    return new, kept


def _like(old: nn.Module, wrapper: nn.Module) -> nn.Module:
    wrapper.training = old.training
    return wrapper


def _scaled(
    model: nn.Module, name: str, old: nn.Module, to: str, options: dict[str, Any]
) -> tuple[nn.Module, tuple[str, ...]]:
    """The new layer with the tensors of the old one that mean the same in both."""
    source = core(old)
    own = next((part for part in (old, getattr(old, "norm", None)) if isinstance(part, OwnScale)), None)
    arguments = _arguments(source, to, next(model.parameters(), torch.empty(0))) | options
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
    if own is not None and to not in ("none", "noise"):
        weight, bias = own.named_affine
        # "rms" has no bias, but one that had one is still the same kind.
        new = OwnScale(new, weight, bias if to != "rms" or isinstance(source, RMSNorm) else None, own.offset)
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
