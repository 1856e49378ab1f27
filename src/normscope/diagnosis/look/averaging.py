"""How buffers of averaged weights come about: they follow training, are computed again, or stay as they were."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.diagnosis.finding import Cost
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.normalizers import Normalizer
from normscope.diagnosis.look.statistics import evaluated, own_statistics, population

# Updates at most, in place of the planned ones; the size of the shift, in deviations.
_MOST, _SHIFT = 500, 64.0


@dataclass(frozen=True)
class Average:
    """The averaged weights of a short training.

    Attributes:
        arrived: share of a change of the running statistics that arrives in the average by the end.
        follows: whether it arrives at all.
        recomputed: whether the average's statistics are the population's at the end although nothing arrived.
        copied: whether it arrives at once, in one update, and the weights do not.
        cost: loss of the average with the statistics of the network that trains, over that with its own.
    """

    arrived: float
    follows: bool
    recomputed: bool
    copied: bool
    cost: Cost


def average_of(look: Look, norms: Sequence[Normalizer]) -> Average | None:
    """The averaged weights; None where their layers do not have the names of the model's."""
    copy = look.trained.copy.copied()
    averaged = copy.averaged_model
    names = _names(averaged, norms)
    if names is None or not isinstance(averaged, nn.Module):
        return None
    cost = _cost(look, norms, names)
    first, weight = norms[0].name, next(copy.model.parameters())
    before, update = _mean(averaged, names[first]), copy.averaged_model.update_parameters
    inner = dict(averaged.named_parameters())
    twin = next((p for name, p in inner.items() if p.shape == weight.shape), None)
    weight_before = None if twin is None else twin.detach().clone()
    with torch.no_grad():
        for norm in norms:
            copy.model.get_submodule(norm.name).running_mean.add_(_SHIFT)  # type: ignore[operator]
        weight.add_(1.0)
        update(copy.model)
        once = float((_mean(averaged, names[first]) - before).mean()) / _SHIFT
        moved = 1.0 if twin is None or weight_before is None else float((twin - weight_before).mean())
        weight.sub_(1.0)
        for _ in range(min(max((look.steps or 100) - look.trained.steps - 1, 0), _MOST)):
            update(copy.model)
    arrived = float((_mean(averaged, names[first]) - before).mean()) / _SHIFT
    follows = arrived > 0.01 or once > 0.01
    # Statistics that are computed again by the end lose the shift.
    copied = once > 0.9 > moved and arrived > 0.5
    return Average(arrived, follows, not follows and _fits(look, averaged, norms, names), copied, cost)


def _names(averaged: Any, norms: Sequence[Normalizer]) -> dict[str, str] | None:
    """The name in the averaged model of each normalizer, by its name in the model."""
    inside = dict(averaged.named_modules()) if isinstance(averaged, nn.Module) else {}
    found = {}
    for norm in norms:
        place = next((name for name in inside if name == norm.name or name.endswith(f".{norm.name}")), None)
        if place is None:
            return None
        found[norm.name] = place
    return found


def _mean(model: nn.Module, name: str) -> Tensor:
    mean = model.get_submodule(name).running_mean
    assert isinstance(mean, Tensor)
    return mean.detach().double().clone()


def _renamed(norms: Sequence[Normalizer], names: dict[str, str]) -> list[Normalizer]:
    return [Normalizer(names[norm.name], norm.layer, norm.core) for norm in norms]


def _fits(look: Look, averaged: nn.Module, norms: Sequence[Normalizer], names: dict[str, str]) -> bool:
    """Whether the average's statistics are the population's of its weights."""
    inner = _renamed(norms, names)
    own = own_statistics(inner, averaged)
    wanted = population(inner, look.trained.copy, averaged, look.batches[-8:])
    ratios = [(own[name][1] / wanted[name][1].clamp(min=1e-12)).log().abs().median() for name in wanted]
    return all(float(ratio) < 0.5 for ratio in ratios)


def _cost(look: Look, norms: Sequence[Normalizer], names: dict[str, str]) -> Cost:
    """Losses of the average after the short training, with statistics of the fast weights and with its own."""
    copy = look.trained.copy
    averaged, inner, batches = copy.averaged_model, _renamed(norms, names), look.judged_batches
    _, settled = look.trained_settled
    fast = {names[name]: pair for name, pair in settled.items() if name in names}
    with_fast = evaluated(inner, copy, averaged, batches, fast).losses
    own = evaluated(inner, copy, averaged, batches, population(inner, copy, averaged, look.batches[-8:])).losses
    look.passes += len(batches)
    pairs = [a - b for a, b in zip(with_fast, own, strict=True) if math.isfinite(a - b)]
    if not pairs:
        return Cost()
    mean = sum(pairs) / len(pairs)
    spread = (sum((p - mean) ** 2 for p in pairs) / max(len(pairs) - 1, 1) / len(pairs)) ** 0.5
    return Cost(mean, spread, "loss", "measured", mean / max(abs(look.chance), 1e-6))
