r"""Noise of batch statistics, and differences between batches, from the inputs of a normalizer over several passes.

    noise   q = mean_c [ s_c^2 / n ] / mean_c [ v_c ]                 a batch mean's share of the variance
    excess  F = mean_c [ Var_b mu_cb ] / mean_c [ s_c^2 / n ]         1 where batches differ by chance alone

mu_cb is the mean of channel c in batch b, s_c^2 the variance over samples of each sample's own mean, n the samples of a
batch, v_c the variance of all values. Channels are weighted by v_c's inverse, so that none dominates. Calls of one
layer in one pass are told apart by their order, so F compares passes; `calls_differ` compares calls within a pass.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.diagnosis.look.trace import Input, Trace

# Share of the variance that is noise, from which statistics are too noisy: six independent values, ten in batches of at
# most `FEW` samples, and twelve in micro-batches.
NOISY, NOISY_OF_FEW, NOISY_OF_MICRO, FEW = 0.16, 0.1, 0.08, 4
# Share of the variance between the calls of one layer in a pass, from which its inputs are of several kinds.
APART = 0.05


def _by_order(calls: Sequence[Input]) -> list[list[Input]]:
    """Lists of the first, second, ... call of every pass; calls in eval mode are left out."""
    passes: dict[int, list[Input]] = {}
    for call in calls:
        if call.training:
            passes.setdefault(call.number, []).append(call)
    most = max(map(len, passes.values()), default=0)
    return [[each[k] for each in passes.values() if len(each) > k] for k in range(most)]


def noise(calls: Sequence[Input]) -> float:
    """The share q of a layer; from the differences between calls where each has one sample; nan where unknown."""
    live = [call for call in calls if call.training]
    if not live:
        return math.nan
    total = _total(live)
    if live[0].samples > 1:
        chance = torch.stack([call.spread / call.samples for call in live]).mean(0)
    elif len(live) > 2:
        chance = torch.stack([call.mean for call in live]).var(0)
    else:
        return math.nan
    return _share(chance, total, total)


def noise_of_layers(trace: Trace, accumulate: int = 1) -> tuple[dict[str, float], float]:
    """The share q of each layer, and the limit of q."""
    values = {name: noise(calls) for name, calls in trace.inputs.items()}
    few = min((calls[0].samples for calls in trace.inputs.values()), default=0) <= FEW
    limit = NOISY_OF_MICRO if accumulate > 1 else NOISY_OF_FEW if few else NOISY
    return values, limit


def noisy_layers(trace: Trace, accumulate: int = 1) -> tuple[dict[str, float], float]:
    """The layers whose statistics are too noisy, with their share q, and the limit of q."""
    values, limit = noise_of_layers(trace, accumulate)
    return {name: value for name, value in values.items() if value >= limit}, limit


def excess(calls: Sequence[Input]) -> float:
    """The ratio F of a layer, the largest over calls of one order; nan with fewer than four passes."""
    found = []
    for alike in _by_order(calls):
        if len(alike) >= 4 and alike[0].samples > 1:
            chance = torch.stack([call.spread / call.samples for call in alike]).mean(0)
            between = torch.stack([call.mean for call in alike]).var(0)
            found.append(_share(between, chance, _total(alike)))
    return max((each for each in found if math.isfinite(each)), default=math.nan)


def calls_differ(calls: Sequence[Input]) -> float:
    """The variance between the means of a layer's calls within a pass, as a share of all variance; nan for one call."""
    orders = _by_order(calls)
    if len(orders) < 2:
        return math.nan
    means = torch.stack([torch.stack([call.mean for call in alike]).mean(0) for alike in orders])
    chance = torch.stack([call.spread / call.samples for alike in orders for call in alike]).mean(0)
    between = (means.var(0, correction=0) - chance / len(orders[0])).clamp(min=0)
    total = _total([call for alike in orders for call in alike])
    return _share(between, total, total)


def _total(calls: Sequence[Input]) -> Tensor:
    means = torch.stack([call.mean for call in calls])
    return torch.stack([call.var for call in calls]).mean(0) + means.var(0, correction=0)


def _share(above: Tensor, below: Tensor, scale: Tensor) -> float:
    """The ratio of two means over channels, each channel in units of its `scale`; constant channels are left out."""
    live = (scale > 1e-12) & above.isfinite() & below.isfinite()
    if not bool(live.any()):
        return math.nan
    one, other = (above[live] / scale[live]).mean(), (below[live] / scale[live]).mean()
    return float(one / other) if float(other) > 0 else math.nan
