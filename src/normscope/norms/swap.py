"""Replace all normalizers of a network by another kind, for a controlled comparison.

To add a kind to swap to, follow the list in `kinds.py`. This file needs no change.
"""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from normscope.messages.choices import check_choice
from normscope.norms.find_norms import find_norms
from normscope.norms.kinds import NORM_NAMES
from normscope.norms.layer_places import also_held_by, replace
from normscope.norms.recognition import known
from normscope.norms.replacement import replacement
from normscope.norms.wrappers import Wrapper


@dataclass(frozen=True)
class Swap:
    """One exchanged layer.

    Attributes:
        name: where the layer is.
        old: the class before.
        new: the class after.
        kept: names of the old tensors that are still in use.
        taken_for: the formula found for a layer of another class than torch's and normscope's, or "".
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
    """The exchanged layers; `left` maps the names of unchanged layers to the reason. `print` shows both in words."""

    def __init__(self, swaps: Iterable[Swap], left: Mapping[str, str]) -> None:
        super().__init__(swaps)
        self.left = dict(left)

    def __str__(self) -> str:
        lines = [f"{len(self)} exchanged:", *(f"  {swap}" for swap in self)]
        if self.left:
            lines += [f"{len(self.left)} left as they were:", *(f"  {n}: {why}" for n, why in self.left.items())]
        return "\n".join(lines)


def swap_norms(model: nn.Module, to: str, **options: Any) -> Swaps:
    """Replace every normalizer of `model` in place by the kind `to`.

    Replaced are BatchNorm, InstanceNorm, GroupNorm, LayerNorm and RMSNorm of torch and the layers of normscope. Layers
    of other classes are replaced if they compute one of these on probe inputs: the RMSNorm of a language model,
    ConvNeXt's LayerNorm2d, a BatchNorm with an activation inside. A layer that looks like a normalizer and computes
    none of these stays as it is; the result's `left` and a warning name it with the reason. A normalization that a
    forward computes without a module is not found.

    Parameters: if old and new layer both have an affine part per channel, the parameters stay the same objects, so an
    optimizer that holds them keeps working. Running statistics are kept between "batch" and "noisy". "none" and "noise"
    have no affine part: if the layer before was built without a bias, the network then has no bias there.

    Statistics: for a layer over the last dimension (LayerNorm(C)), batch statistics run over all positions. A layer
    that normalizes each position of (N, C, *space) by itself (LayerNorm2d) still does so with "layer", "group" and
    "rms".

    Hooks stay with the old layers. If a layer of torch or normscope cannot be replaced, no layer is.

    Args:
        model: any module; a normalizer used in two places stays one layer in two places.
        to: none, batch, layer, group, instance, rms, l1, l2, linf, noisy or noise.
        options: for the new layers, e.g. eps=, momentum=, groups=, centered=, sync=. By default "group" makes the
            largest number of groups that divides the channels, at most 32, of at least two channels each.
            seed= is one seed for the model; every noise layer draws its own seed from it.

    Returns:
        The exchanged layers, and the unchanged ones with the reason.

    Raises:
        ValueError: the model has no normalizer, is one itself, or holds one where it cannot be replaced.
        TypeError: an option that the new layer does not take.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        >>> swap_norms(model, "l1")
        [Swap(name='1', old='BatchNorm1d', new='LpNorm1d', kept=('weight', 'bias'))]
    """
    check_choice("normalizer", to, NORM_NAMES)
    if to == "none" and options:
        raise TypeError(f"'none' has no layer to give options to; got {', '.join(options)}.")
    norms = find_norms(model)
    if model in norms.layers.values():
        raise ValueError(
            f"swap_norms changes the layers inside a model, and {type(model).__name__} is itself a layer. "
            "Wrap it first: nn.Sequential(layer)."
        )
    left = {name: f"{_describe(model.get_submodule(name))}: {reason}" for name, reason in norms.left.items()}
    if not norms.layers:
        raise ValueError(_nothing_to_swap(model, left))
    names: dict[nn.Module, str] = {}
    for name, old in norms.layers.items():
        names.setdefault(old, name)
    seeds = _seeds(options.pop("seed"), len(names)) if options.get("seed") is not None else []
    each = [options | {"seed": seed} for seed in seeds] or [options] * len(names)
    replacements: dict[nn.Module, tuple[nn.Module, tuple[str, ...]]] = {}
    for (old, name), chosen in zip(names.items(), each, strict=True):
        _check_place(model, name, old)
        replacements[old] = replacement(model, name, norms.twins.get(old, old), to, chosen)
    for old, (new, _) in replacements.items():
        replace(model, old, new)
    if left:
        total = len(left) + len(names)
        warnings.warn(f"swap_norms left {len(left)} of {total} layers as they were: {_listed(left)}.", stacklevel=2)
    return Swaps(
        (
            Swap(
                name, _describe(old), _describe(replacements[old][0]), replacements[old][1], norms.formulas.get(old, "")
            )
            for name, old in norms.layers.items()
        ),
        left,
    )


def _nothing_to_swap(model: nn.Module, left: dict[str, str]) -> str:
    said = f"{type(model).__name__} has no normalizer to swap"
    if left:
        return f"{said}. Examined and left: {_listed(left)}."
    return (
        f"{said}: no module in it is a normalization layer, by its class or by what it computes. A normalization that "
        "a forward computes without a module is not seen; make it a module."
    )


def _listed(left: dict[str, str]) -> str:
    """Each reason once, with the name of the first layer it applies to and the number of others."""
    by_reason = {why: [name for name, other in left.items() if other == why] for why in left.values()}
    more = {why: f" and {len(names) - 1} more" * (len(names) > 1) for why, names in by_reason.items()}
    return "; ".join(f"{names[0]}{more[why]} ({why})" for why, names in by_reason.items())


def _seeds(seed: int, n: int) -> list[int]:
    """One seed for each layer: with a common seed all layers would shift together."""
    generator = torch.Generator().manual_seed(seed)
    seeds: list[int] = torch.randint(2**62, (n,), generator=generator).tolist()
    return seeds


def _describe(layer: nn.Module) -> str:
    return f"{type(layer).__name__}({_describe(layer.norm)})" if isinstance(layer, Wrapper) else type(layer).__name__


def _check_place(model: nn.Module, name: str, old: nn.Module) -> None:
    if holder := also_held_by(model, old):
        raise ValueError(
            f"{name} is also held in the plain container {holder}, which would keep the old layer. Make that an "
            "nn.ModuleList or nn.ModuleDict, or take the layer out of it."
        )
    if known(old) and "Lazy" in type(old).__name__:
        raise ValueError(f"{name} is a {type(old).__name__} and does not know its channels yet. Run one batch first.")
