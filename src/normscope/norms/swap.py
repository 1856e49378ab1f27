"""Another normalizer in the same network: the controlled comparison, on any module."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from normscope.choices import check_choice
from normscope.norms._places import also_held_by, replace
from normscope.norms.kinds import NORM_NAMES
from normscope.norms.normalizers_of import find_norms
from normscope.norms.recognition import known
from normscope.norms.replacement import replacement
from normscope.norms.wrappers import Wrapper


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
        replacements[old] = replacement(model, name, found.twins.get(old, old), to, chosen)
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
