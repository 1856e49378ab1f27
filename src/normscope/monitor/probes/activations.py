r"""Activations: moments of each layer's output, their change from step to step, and the histogram of one channel.

    mu_j, var_j         mean and (biased) variance of channel j over the batch, and over space
    change of mu        mean_j |mu_j(t) - mu_j(t-1)|, likewise var; t-1 and t are successive training steps
    drift of mu         mean_j |mu_j(t) - mu_j(t_0)|, likewise var; t_0 is the first snapshot of that layer

The moments are those of the output of every weight layer and every normalizer, on the batch of the step, in train mode;
a layer called more than once is measured at its first call. One channel of each layer is drawn once from a seed; its
histogram is taken in every snapshot. Source: Santurkar et al. 2018, Figures 7 and 8.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.monitor.snapshot import Snapshot
from normscope.norms.channels import wide
from normscope.norms.kinds import NORM_LAYERS, Identity
from normscope.stability.verdict import Verdict

BINS = 40
_SOURCE = "Santurkar et al. 2018, Algorithm 1 and Figure 7"
# Santurkar et al. 2018, Algorithm 1, moves the mean of a normalized unit by 1/3 of its standard deviation a step, on
# average, and the network trains all the same.
NOISY_JUMP = 1 / 3
_CHANNELS_LAST = (nn.Bilinear, nn.RNNBase, nn.MultiheadAttention)


@dataclass(frozen=True)
class Activations:
    """Moments of each layer's output, averaged over its channels; every tuple has one entry a layer.

    Attributes:
        layers: names of the layers, in the order in which they run.
        means: mean of the output, over samples, sites and channels.
        variances: variance of the output over samples and sites, averaged over channels.
        mean_changes: absolute change of the channel means since the training step before, in the unit of the output;
            nan if that step was not measured.
        variance_changes: absolute change of the channel variances since the training step before; nan if that step was
            not measured.
        mean_drifts: absolute change of the channel means since the layer's first snapshot, in the unit of the output.
        variance_drifts: absolute change of the channel variances since the layer's first snapshot.
        channels: number of the channel drawn for the histogram.
        edges: the smallest and the largest value of that channel.
        counts: numbers of values in 40 equal bins between the edges.
    """

    layers: tuple[str, ...]
    means: tuple[float, ...]
    variances: tuple[float, ...]
    mean_changes: tuple[float, ...]
    variance_changes: tuple[float, ...]
    mean_drifts: tuple[float, ...]
    variance_drifts: tuple[float, ...]
    channels: tuple[int, ...]
    edges: tuple[tuple[float, float], ...]
    counts: tuple[tuple[int, ...], ...]

    def summary(self) -> dict[str, float]:
        """Changes and drifts, averaged over the layers."""
        return {
            "mean_change": _mean(self.mean_changes),
            "variance_change": _mean(self.variance_changes),
            "mean_drift": _mean(self.mean_drifts),
            "variance_drift": _mean(self.variance_drifts),
        }

    def by_layer(self) -> dict[str, dict[str, float]]:
        """Moments, changes and drifts of each layer."""
        names = ("mean", "variance", "mean_change", "variance_change", "mean_drift", "variance_drift")
        columns = (
            self.means,
            self.variances,
            self.mean_changes,
            self.variance_changes,
            self.mean_drifts,
            self.variance_drifts,
        )
        return {
            layer: dict(zip(names, row, strict=True))
            for layer, row in zip(self.layers, zip(*columns, strict=True), strict=True)
        }

    def histograms(self) -> Iterator[tuple[str, tuple[float, float], tuple[int, ...]]]:
        """Name of the layer, both ends and counts of its histogram."""
        yield from zip(self.layers, self.edges, self.counts, strict=True)

    def verdicts(self, loss_kind: str) -> list[Verdict]:
        """One verdict: the largest change of a mean in one step, in standard deviations."""
        jumps = {
            layer: change / math.sqrt(variance)
            for layer, change, variance in zip(self.layers, self.mean_changes, self.variances, strict=True)
            if variance > 0 and math.isfinite(change)
        }
        if not jumps:
            return []
        layer = max(jumps, key=jumps.__getitem__)
        calm = jumps[layer] <= NOISY_JUMP
        text = (
            f"In one step the channel means move by at most {jumps[layer]:.2g} standard deviations ({layer}), "
            f"{'less' if calm else 'more'} than the noise of {NOISY_JUMP:.2f} that the paper's network trains under."
        )
        formula = "mean_j |mu_j(t) - mu_j(t-1)| / sqrt(mean_j var_j) <= 1/3"
        return [Verdict("activations", True if calm else None, text, formula, _SOURCE)]


def _mean(values: tuple[float, ...]) -> float:
    """The mean over the layers that have an earlier step to compare with."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


class ActivationProbe:
    """Measures `Activations` in the pass at theta, and once more, with one forward pass, at the training step after.

    Args:
        seed: seed of the generator that draws one channel of each layer for the histogram.
    """

    name = "activations"
    forward_only = True
    follow_up = True

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._channels: dict[str, int] = {}
        self._outputs: dict[str, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self._first: dict[str, tuple[Tensor, Tensor]] = {}
        self._last: dict[str, tuple[Tensor, Tensor]] = {}
        self._last_step = -2

    def begin(self) -> None:
        """Forget the outputs of the snapshot before."""
        self._outputs = {}

    @torch.no_grad()
    def watch(self, name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Take the moments and the histogram of a module's output."""
        if name in self._outputs:
            return
        weighs = any(p.ndim > 1 for p in module.parameters())
        if not weighs and not isinstance(module, (*NORM_LAYERS, Identity)):
            return
        output = output[0] if isinstance(output, tuple) else output
        if not isinstance(output, Tensor) or not output.is_floating_point() or output.ndim < 2 or not output.numel():
            return
        with torch.autocast(output.device.type, enabled=False):
            x = wide(output.detach()).movedim(_channel_axis(module, output), 0)
            if name not in self._channels:
                self._channels[name] = int(torch.randint(len(x), (), generator=self._generator))
            variance, mean = torch.var_mean(x, dim=list(range(1, x.ndim)), correction=0)
            self._outputs[name] = (mean, variance, *_histogram(x[self._channels[name]].flatten()))

    def measure(self, snapshot: Snapshot) -> Activations:
        """The moments watched in the pass at theta, compared with the step before and the first snapshot."""
        _ = snapshot.loss
        outputs, layers = self._outputs, tuple(self._outputs)
        if not layers:
            raise ValueError("The network has no weight layer or normalizer whose output is a batch of channels.")
        now = {name: (mean, variance) for name, (mean, variance, _, _) in outputs.items()}
        self._first = now | self._first
        before = self._last if snapshot.step == self._last_step + 1 else {}
        rows = torch.stack([_row(now[name], before.get(name), self._first[name]) for name in layers])
        rows_mean = snapshot.at.mean_over_processes(rows).tolist()
        mean, variance, d_mean, d_variance, drift_mean, drift_variance = zip(*rows_mean, strict=True)
        edges = torch.stack([outputs[name][2].double() for name in layers]).tolist()
        counts = torch.stack([outputs[name][3] for name in layers]).long().tolist()
        self._last, self._last_step = now, snapshot.step
        return Activations(
            layers=layers,
            means=mean,
            variances=variance,
            mean_changes=d_mean,
            variance_changes=d_variance,
            mean_drifts=drift_mean,
            variance_drifts=drift_variance,
            channels=tuple(self._channels[name] for name in layers),
            edges=tuple((low, high) for low, high in edges),
            counts=tuple(map(tuple, counts)),
        )


Moments = tuple[Tensor, Tensor]


def _row(now: Moments, before: Moments | None, first: Moments) -> Tensor:
    parts = [now[0].mean(), now[1].mean()]
    for other in (before, first):
        parts += [
            (a - b).abs().mean() if other else a.new_tensor(math.nan) for a, b in zip(now, other or now, strict=True)
        ]
    return torch.stack(parts).double()


def _channel_axis(module: nn.Module, output: Tensor) -> int:
    """The axis of channels: the last one for layers that multiply by a matrix, the second one for convolutions."""
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return -1 if tuple(module.normalized_shape) == output.shape[-1:] else 1
    matrices = max((p.ndim for p in module.parameters()), default=0) == 2
    return -1 if matrices or isinstance(module, _CHANNELS_LAST) else 1


def _histogram(x: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and largest value, and counts in equal bins between them, without waiting for the device."""
    edges = torch.stack(torch.aminmax(x))
    width = (edges[1] - edges[0]).clamp(min=torch.finfo(x.dtype).tiny)
    bins = ((x - edges[0]) / width * BINS).nan_to_num().long().clamp(0, BINS - 1)
    return edges, torch.zeros(BINS, device=x.device).index_add_(0, bins, torch.ones_like(x, dtype=torch.float32))
