"""Averaged weights that are evaluated with the running statistics of other weights."""

import copy
import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from faults.case import Case
from faults.development.networks import cnn
from faults.development.setups import digit_setup, sgd
from normscope import Setup


class ParameterAverage(nn.Module):
    """A hand-written moving average: of the parameters, and with `buffers` of the buffers too."""

    def __init__(self, model: nn.Module, decay: float, buffers: bool) -> None:
        super().__init__()
        self.module, self.decay, self.with_buffers = copy.deepcopy(model).requires_grad_(False), decay, buffers

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        for mine, theirs in zip(self.module.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 1 - self.decay)
        if self.with_buffers:
            for mine, theirs in zip(self.module.buffers(), model.buffers(), strict=True):
                mine.copy_(mine.lerp(theirs, 1 - self.decay) if mine.is_floating_point() else theirs)


def hand_written_average(seed: int, fault: bool) -> Setup:
    torch.manual_seed(seed)
    model = cnn()
    average = ParameterAverage(model, 0.9, buffers=not fault)
    return digit_setup(model, sgd(0.05), size=32, steps=200, seed=seed, averaged_model=average)


class AverageWithStatistics(AveragedModel):
    """Averaged weights for which running statistics are computed again every 50 steps."""

    def __init__(self, model: nn.Module, batches: Iterable[Any]) -> None:
        super().__init__(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
        self.batches = list(itertools.islice(batches, 20))

    def update_parameters(self, model: nn.Module) -> None:
        super().update_parameters(model)
        if int(self.n_averaged) % 50 == 0:
            update_bn(self.batches, self)


def copied_buffers(seed: int, fault: bool) -> Setup:
    """A long average at a large rate; the buffers are copied from the network that trains."""
    torch.manual_seed(seed)
    model = cnn()
    setup = digit_setup(model, sgd(0.3), size=16, steps=200, seed=seed)
    assert setup.batches is not None
    average = AverageWithStatistics(model, setup.batches)
    if fault:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
    return replace(setup, averaged_model=average)


CASES = (
    Case(
        "average-without-buffers",
        "development",
        hand_written_average,
        "averaged-weights-foreign-buffers",
        "https://github.com/pytorch/pytorch/issues/84053",
        also=("stale-running-statistics",),
        fix="buffers averaged with the parameters",
    ),
    Case(
        "average-with-copied-buffers",
        "development",
        copied_buffers,
        "averaged-weights-foreign-buffers",
        "https://github.com/huggingface/pytorch-image-models/issues/106",
        also=("stale-running-statistics",),
        fix="running statistics computed for the averaged weights",
    ),
)
