"""Judge a rehearsed copy on held-out batches: in eval mode, with new running statistics of BatchNorm.

After a few steps the running statistics are still near their first values, so they are replaced by averages over a few
training batches at the copy's present weights.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from normscope.norms.population import restart_as_plain_mean
from normscope.setup import Setup
from normscope.tuning.stage import Stage

# A forward pass costs about a third of a gradient pass: a backward pass has two products for each of its one.
FORWARD_SHARE = 1 / 3
_RECALIBRATED_ON = 2


@dataclass(frozen=True)
class Judged:
    """The loss of every held-out batch, the mean of the metric (nan without one), and the number of forward passes."""

    losses: tuple[float, ...]
    metric: float
    forwards: int


def judge(stage: Stage, copy: Setup) -> Judged:
    """Judge a copy that is in the mode it trains in; afterwards it is in eval mode.

    Gradients stay enabled, since a loss may need them (of a differential equation, for example).
    """
    forwards = _recalibrate(stage, copy)
    copy.model.eval()
    losses, metrics = [], []
    for batch in stage.held_out_batches():
        with _cast(stage, copy):
            inputs, targets = copy.objective.parts(batch)
            outputs = copy.objective.outputs(copy.model, inputs)
            losses.append(float(copy.objective.loss(outputs, targets).detach()))
        if copy.metric is not None:
            with torch.no_grad():
                metrics.append(float(copy.metric(outputs, targets)))
    return Judged(tuple(losses), sum(metrics) / len(metrics) if metrics else math.nan, forwards + len(losses))


def _recalibrate(stage: Stage, copy: Setup) -> int:
    """Replace BatchNorm's running statistics; returns the number of forward passes."""
    layers = _moving(copy.model)
    if not layers:
        return 0
    restart_as_plain_mean(layers)
    batches = stage.first_batches(_RECALIBRATED_ON)
    for batch in batches:
        with _cast(stage, copy):
            copy.objective.outputs(copy.model, copy.objective.parts(batch)[0])
    return len(batches)


def _moving(model: nn.Module) -> list[Any]:
    """The BatchNorm layers whose running statistics move in training."""
    layers = (module for module in model.modules() if isinstance(module, _BatchNorm))
    return [layer for layer in layers if layer.training and layer.running_mean is not None]


def _cast(stage: Stage, copy: Setup) -> Any:
    on = copy.autocast is not None
    return torch.autocast(stage.device.type, copy.autocast, enabled=on)
