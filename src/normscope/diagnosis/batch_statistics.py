r"""Batch statistics of BatchNorm layers, call by call, and the running statistics that follow from them.

    population      E = sum_t m_t mu_t / sum_t m_t        Var = sum_t (m_t - 1) u_t / sum_t (m_t - 1)
    momentum a      r_t = (1 - a) r_{t-1} + a s_t         from r_0 = (0, 1), over all steps of the training

m_t is the number of values per channel in call t, mu_t the batch mean, u_t the unbiased batch variance, and s_t one of
the two. In train mode a BatchNorm does not use its running statistics, so they change nothing in the training: one
record of batch statistics gives the running statistics of every momentum.
Source: the encyclopedia article "Batch normalization", section "Inference"; torch's documentation of `BatchNorm1d`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normscope.norms.channels import stat_dims, wide
from normscope.norms.population import Statistics


class BatchStatistics(NamedTuple):
    """The statistics of one call of a layer: values per channel, mean, and unbiased variance, in float64."""

    values: int
    mean: Tensor
    var: Tensor


Record = dict[str, list[BatchStatistics]]


def tracking_layers(model: nn.Module) -> dict[str, Any]:
    """The BatchNorm layers that keep running statistics, by name.

    Example:
        >>> [*tracking_layers(nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False)))]
        ['0']
    """
    layers = model.named_modules()
    return {name: layer for name, layer in layers if isinstance(layer, _BatchNorm) and layer.running_mean is not None}


@contextmanager
def recording(layers: Mapping[str, nn.Module]) -> Iterator[Record]:
    """While this context lasts, each call of the layers adds its batch statistics to the record.

    Example:
        >>> layer = nn.BatchNorm1d(1)
        >>> with recording({"layer": layer}) as record:
        ...     _ = layer(torch.tensor([[0.0], [2.0]]))
        >>> record["layer"][0].mean.item(), record["layer"][0].var.item()
        (1.0, 2.0)
    """
    record: Record = {name: [] for name in layers}

    def add_to(calls: list[BatchStatistics]) -> Any:
        @torch.no_grad()
        def add(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            x = wide(args[0] if args else named["input"])
            count = x.numel() // x.shape[1]
            if count > 1:
                var, mean = torch.var_mean(x, dim=stat_dims(x))
                calls.append(BatchStatistics(count, mean.double(), var.double()))

        return add

    hooks = [layer.register_forward_pre_hook(add_to(record[n]), with_kwargs=True) for n, layer in layers.items()]
    try:
        yield record
    finally:
        for hook in hooks:
            hook.remove()


def population(record: Record) -> Statistics:
    """The population statistics of each layer that was called.

    Example:
        >>> calls = [BatchStatistics(2, torch.tensor([1.0]), torch.tensor([2.0])),
        ...          BatchStatistics(4, torch.tensor([4.0]), torch.tensor([6.0]))]
        >>> [value.item() for value in population({"layer": calls})["layer"]]
        [3.0, 5.0]
    """
    statistics = {}
    for name, calls in record.items():
        if calls:
            mean = sum((s.values * s.mean for s in calls), torch.zeros_like(calls[0].mean))
            var = sum(((s.values - 1) * s.var for s in calls), torch.zeros_like(calls[0].var))
            count = sum(s.values for s in calls)
            statistics[name] = mean / count, var / (count - len(calls))
    return statistics


def with_momentum(calls: Sequence[BatchStatistics], momentum: float, tracked: int) -> tuple[Tensor, Tensor]:
    """The running statistics of one layer after `tracked` calls with another momentum.

    Args:
        calls: batch statistics of the layer, the latest last. If fewer than `tracked`, the calls before them are taken
            to have had their mean; if more, the first ones are left out.
        momentum: weight of a new batch, above 0 to 1.
        tracked: number of calls since the running statistics were (0, 1).

    Example:
        >>> call = BatchStatistics(2, torch.tensor([4.0]), torch.tensor([9.0]))
        >>> [value.item() for value in with_momentum([call], 0.5, tracked=2)]
        [3.0, 7.0]
    """
    last = calls[-tracked:]
    averages = []
    for several, first in ((torch.stack([s.mean for s in last]), 0.0), (torch.stack([s.var for s in last]), 1.0)):
        left = (1 - momentum) ** (tracked - len(last))
        running = left * first + (1 - left) * several.mean(0)
        for value in several:
            running = (1 - momentum) * running + momentum * value
        averages.append(running)
    return averages[0], averages[1]


@torch.no_grad()
def set_statistics(layers: Mapping[str, Any], statistics: Statistics) -> None:
    """Write means and variances into the layers' running statistics."""
    for name, (mean, var) in statistics.items():
        layers[name].running_mean.copy_(mean)
        layers[name].running_var.copy_(var)
