"""Evaluate a lent network on batches in train mode, with batch statistics alone, or in eval mode."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from normscope.diagnosis.batch_statistics import Record, recording, set_statistics, tracking_layers
from normscope.diagnosis.gap_result import Amount
from normscope.isolation.batch_copies import Copies, lent_objective
from normscope.isolation.batches import samples
from normscope.isolation.lending import untouched
from normscope.norms.population import Statistics
from normscope.setup import Setup
from normscope.training import seeded_on

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rows:
    """Loss and metric of each batch, the number of its samples, and the batch statistics of the calls."""

    losses: Floats
    metrics: Floats
    counts: Floats
    record: Record

    @property
    def mean(self) -> Amount:
        """The means over samples, with standard errors over batches."""
        return Amount(*_mean(self.losses, self.counts), *_mean(self.metrics, self.counts))

    def minus(self, other: "Rows", *, paired: bool) -> Amount:
        """The mean difference; `paired` if both were evaluated on the same batches."""
        if paired:
            loss, metric = self.losses - other.losses, self.metrics - other.metrics
            return Amount(*_mean(loss, self.counts), *_mean(metric, self.counts))
        a, b = self.mean, other.mean
        errors = math.hypot(a.loss_stderr, b.loss_stderr), math.hypot(a.metric_stderr, b.metric_stderr)
        return Amount(a.loss - b.loss, errors[0], a.metric - b.metric, errors[1])


def _mean(values: Floats, counts: Floats) -> tuple[float, float]:
    """The mean weighted by `counts` and its standard error; a short last batch counts less."""
    shares = counts / counts.sum()
    mean = float((shares * values).sum())
    if len(values) < 2:
        return mean, math.nan
    return mean, float(np.sqrt((shares**2 * (values - mean) ** 2).sum() * len(values) / (len(values) - 1)))


def gain(before: Rows, after: Rows) -> Amount:
    """The fall of the loss and the rise of the metric between evaluations on the same batches."""
    change = after.minus(before, paired=True)
    return replace(change, loss=-change.loss)


class Evaluator:
    """A network lent for evaluations; each starts from the state in which it was lent. Made by `evaluating`.

    layers: the BatchNorm layers whose running statistics move in train mode. modes: "train" as the network trains;
    "batch" like eval mode, but with batch statistics in these layers; "eval".
    """

    def __init__(self, setup: Setup, network: nn.Module, lent: Any, seed: int) -> None:
        self._setup, self._network, self._lent, self._seed = setup, network, lent, seed
        self._objective = lent_objective(setup.objective)
        self.device = next((p.device for p in network.parameters()), torch.device("cpu"))
        self._layers: dict[str, Any] = {}
        self._set_mode("train")
        self.layers = {name: layer for name, layer in tracking_layers(network).items() if layer.training}

    def evaluate(self, batches: Sequence[Any], mode: str, statistics: Statistics | None = None) -> Rows:
        """The rows of `batches`; `statistics` replace the running statistics."""
        self._lent.reset()
        self._set_mode(mode)
        set_statistics(self.layers, statistics or {})
        rows = []
        with seeded_on(self._seed, self.device), recording(self.layers) as record:
            for batch in batches:
                rows.append((*self._numbers(Copies(batch).take()), float(samples(batch) or 1)))
        losses, metrics, counts = np.array(rows, dtype=float).T
        return Rows(losses, metrics, counts, record)

    def _set_mode(self, mode: str) -> None:
        if mode == "train":
            # Layers of a training network that are in eval mode, as a frozen BatchNorm, stay there.
            if not self._network.training:
                self._network.train()
            return
        self._network.eval()
        if mode == "batch":
            for layer in self.layers.values():
                layer.training = True

    def _numbers(self, batch: Any) -> tuple[float, float]:
        # Gradients stay enabled, since a loss may need them (of a differential equation, for example).
        autocast = self._setup.autocast
        with torch.autocast(self.device.type, autocast, enabled=autocast is not None):
            inputs, targets = self._objective.parts(batch)
            outputs = self._objective.outputs(self._network, inputs)
            loss = float(self._objective.loss(outputs, targets).detach())
        if self._setup.metric is None:
            return loss, math.nan
        with torch.no_grad():
            return loss, float(self._setup.metric(outputs, targets))


@contextmanager
def evaluating(setup: Setup, network: nn.Module, seed: int) -> Iterator[Evaluator]:
    """While this context lasts, `network` works on lent copies; afterwards it is as it was."""
    with untouched(network) as lent:
        yield Evaluator(setup, network, lent, seed)
