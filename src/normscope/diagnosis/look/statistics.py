"""Running statistics of a copy: those to which its training leads, those of the population, and losses with them."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normscope.diagnosis.look.normalizers import Normalizer
from normscope.diagnosis.look.passes import judged, still_pass
from normscope.diagnosis.look.trace import Trace
from normscope.norms.population import Statistics, restart_as_plain_mean
from normscope.setup import Setup


@dataclass(frozen=True)
class Evaluated:
    """Loss and metric of each batch in eval mode; nan for what the setup does not have."""

    losses: tuple[float, ...]
    metrics: tuple[float, ...]

    def worse_than(self, other: "Evaluated") -> tuple[float, float, str]:
        """The mean difference over batches, its standard error, and its unit: the metric where there is one.

        Positive where this one is worse: a larger loss, or a smaller metric.
        """
        metrics = [b - a for a, b in zip(self.metrics, other.metrics, strict=True)]
        losses = [a - b for a, b in zip(self.losses, other.losses, strict=True)]
        unit, values = ("metric", metrics) if all(map(math.isfinite, metrics)) else ("loss", losses)
        mean, error = mean_and_error(values)
        return mean, error, unit

    @property
    def loss(self) -> float:
        """The mean loss."""
        return sum(self.losses) / len(self.losses) if self.losses else math.nan

    @property
    def metric(self) -> float:
        """The mean metric."""
        return sum(self.metrics) / len(self.metrics) if self.metrics else math.nan


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, nan for a single value.

    Example:
        >>> mean_and_error([1.0, 3.0])
        (2.0, 1.0)
    """
    count = len(values)
    mean = sum(values) / count if count else math.nan
    if count < 2:
        return mean, math.nan
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1) / count)


def own_statistics(norms: Sequence[Normalizer], model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """The running statistics that `model` holds, copied."""
    found = {}
    for norm in norms:
        layer = model.get_submodule(norm.name)
        if norm.tracks and isinstance(getattr(layer, "running_var", None), Tensor):
            found[norm.name] = layer.running_mean.clone(), layer.running_var.clone()  # type: ignore[operator]
    return found


def settled_statistics(
    norms: Sequence[Normalizer], setup: Setup, batches: Sequence[Any], trace: Trace
) -> dict[str, tuple[Tensor, Tensor]]:
    r"""The running statistics to which a training at rest leads, from a few of its passes.

        r_n = (1 - m)^n r_0 + m sum_k (1 - m)^(n-k) s_k        settled: (r_n - (1 - m)^n r_0) / (1 - (1 - m)^n)

    s_k are the batch statistics, m is the momentum. A layer whose statistics do not move keeps them.
    """
    names = [norm for norm in norms if norm.tracks]
    before = own_statistics(names, setup.model)
    for number, batch in enumerate(batches):
        trace.number = number
        still_pass(setup, batch)
    after, settled = own_statistics(names, setup.model), {}
    for norm in names:
        if norm.name not in after:
            continue
        calls = sum(call.training for call in trace.inputs.get(norm.name, ()))
        momentum = norm.momentum
        if not calls or momentum is None or not 0 < momentum < 1:
            settled[norm.name] = after[norm.name]
            continue
        left = (1 - momentum) ** calls
        first, last = before[norm.name], after[norm.name]
        mean, var = ((b.double() - left * a.double()) / (1 - left) for a, b in zip(first, last, strict=True))
        settled[norm.name] = mean.float(), var.clamp(min=0).float()
    return settled


def population(
    norms: Sequence[Normalizer], setup: Setup, model: nn.Module, batches: Sequence[Any], *, dropout: bool = True
) -> dict[str, tuple[Tensor, Tensor]]:
    """Population statistics of a copy, called as in evaluation with batch statistics; all of it is put back.

    Args:
        dropout: whether the other layers are in their training mode; False puts them in eval mode.
    """
    tracked = {norm.name: norm for norm in norms if norm.tracks and isinstance(norm.layer, _BatchNorm)}
    with _modes_and_buffers(model):
        if not dropout:
            model.eval()
        layers = [model.get_submodule(name) for name in tracked]
        for layer in layers:
            layer.train()
        restart_as_plain_mean(layers)
        for batch in batches:
            judged(setup, model, batch)
        return own_statistics(list(tracked.values()), model)


def evaluated(
    norms: Sequence[Normalizer], setup: Setup, model: nn.Module, batches: Sequence[Any], statistics: Statistics | None
) -> Evaluated:
    """Loss and metric in eval mode with these running statistics; None keeps the model's own."""
    with _modes_and_buffers(model):
        model.eval()
        for name, (mean, var) in (statistics or {}).items():
            layer: Any = model.get_submodule(name)
            layer.running_mean.copy_(mean)
            layer.running_var.copy_(var)
        pairs = [judged(setup, model, batch) for batch in batches]
    return Evaluated(tuple(loss for loss, _ in pairs), tuple(metric for _, metric in pairs))


@contextmanager
def _modes_and_buffers(model: nn.Module) -> Iterator[None]:
    modules = list(model.modules())
    modes = [module.training for module in modules]
    momenta = [(module, module.momentum) for module in modules if isinstance(module, _BatchNorm)]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        for layer, momentum in momenta:
            layer.momentum = momentum
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)
