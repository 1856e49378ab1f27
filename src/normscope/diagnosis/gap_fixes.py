"""Fixes of the train/eval gap, each with the gain that is predicted for it.

population_statistics   measured: eval mode with population statistics of the training batches
momentum_X              predicted: running statistics of momentum X, from the batch statistics of the last calls
averaged_buffers        measured: the averaged network with population statistics at its own weights
larger_batch            the sign: is the noise of batch statistics worth removing?
sync_batch_norm         the sign, as for larger_batch: statistics over several processes
group_norm              the sign: is that noise larger than what GroupNorm costs?

docs/evidence/train-eval-gap.md compares predicted with realised gains. The sign of group_norm is the weakest of them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from normscope.diagnosis.batch_statistics import Record, population, tracking_layers
from normscope.diagnosis.gap_evaluations import Evaluator, Rows, evaluating, gain
from normscope.diagnosis.gap_result import Amount, Fix
from normscope.diagnosis.other_momenta import momentum_gains
from normscope.norms.population import Statistics
from normscope.setup import Setup

# Shares of the loss that the noise of batch statistics must make up. They were chosen on the development networks of
# benchmarks/train_eval_gap_networks.py, before the twelve networks of the benchmark were trained.
NOTICED, WORTH_GROUP_NORM = 0.12, 0.25


@dataclass(frozen=True, eq=False)
class Seen:
    """The material of the predictions: the network after its steps, batches, statistics and evaluations.

    setup: the training of the network looked at. rows: the evaluations in order. rehearsed: batch statistics of the
    steps that a copy has taken; None if it took none. spare: a copy that can take further steps.
    """

    setup: Setup
    evaluator: Evaluator
    training: list[Any]
    held_out: list[Any]
    as_trained: Statistics
    rows: list[tuple[str, Rows]]
    rehearsed: Record | None
    spare: Setup | None
    seed: int

    @property
    def judged(self) -> list[Any]:
        """The batches that gains are judged on."""
        return self.held_out or self.training

    @property
    def where(self) -> str:
        """The kind of data that gains are judged on."""
        return "evaluation" if self.held_out else "training"

    @property
    def used(self) -> str:
        """The data that measured gains were made from."""
        return f"statistics of {len(self.training)} training batches, judged on {len(self.judged)} {self.where} batches"


def fixes(seen: Seen, momenta: Sequence[float]) -> tuple[tuple[Fix, ...], list[str]]:
    """All fixes that apply, those with the largest gain in loss first, and notes on those that could not be judged."""
    found: list[Fix] = []
    notes: list[str] = []
    if seen.evaluator.layers:
        rows = dict(seen.rows)
        running, best = rows["evaluation"], rows["population as trained"]
        if seen.held_out:
            best = seen.evaluator.evaluate(seen.judged, "eval", seen.as_trained)
        found.append(_population(seen, running, best))
        found += _momenta(seen, momenta, running, best, notes)
        found += _signs(rows["random layers off"], rows["population"], len(seen.training))
    found += _averaged(seen, notes)
    return tuple(sorted(found, key=lambda fix: math.inf if fix.gain is None else -fix.gain.loss)), notes


def _fix(name: str, text: str, gain: Amount, used: str, code: str) -> Fix:
    clear = abs(gain.loss) > 2 * gain.loss_stderr
    return Fix(name, text, gain, int(np.sign(gain.loss)) if clear else 0, used, code)


def _population(seen: Seen, running: Rows, best: Rows) -> Fix:
    return _fix(
        "population_statistics",
        "Set the running statistics to population statistics of the training batches, after training",
        gain(running, best),
        seen.used,
        "normscope.norms.use_population_statistics(model, batches)",
    )


def _momenta(seen: Seen, momenta: Sequence[float], running: Rows, best: Rows, notes: list[str]) -> Iterator[Fix]:
    layers = seen.evaluator.layers.values()
    other = [momentum for momentum in momenta if any(layer.momentum != momentum for layer in layers)]
    if not all(int(layer.num_batches_tracked) for layer in layers):
        notes.append("The running statistics count no batches (num_batches_tracked), so no other momentum is judged.")
        return
    gains = momentum_gains(
        seen.evaluator,
        seen.training,
        seen.judged,
        other,
        record=seen.rows[0][1].record if seen.rehearsed is None else seen.rehearsed,
        spare=seen.spare,
        rehearsed=seen.rehearsed is not None,
        running=running,
        best=best,
        seed=seen.seed,
    )
    for momentum, amount in gains.items():
        yield _fix(
            f"momentum_{momentum:g}",
            f"Train with momentum={momentum:g} in BatchNorm",
            amount,
            f"batch statistics of training batches, judged on {len(seen.judged)} {seen.where} batches",
            f"for layer in batch_norms: layer.momentum = {momentum:g}",
        )


def _averaged(seen: Seen, notes: list[str]) -> Iterator[Fix]:
    averaged = seen.setup.averaged_model
    network = getattr(averaged, "module", averaged)
    if not isinstance(network, nn.Module):
        if averaged is not None:
            notes.append(f"The averaged model {type(averaged).__name__} has no .module, so it was not evaluated.")
        return
    if not tracking_layers(network):
        return
    with evaluating(seen.setup, network, seen.seed) as evaluator:
        before = evaluator.evaluate(seen.judged, "eval")
        own = population(evaluator.evaluate(seen.training, "train").record)
        after = evaluator.evaluate(seen.judged, "eval", own)
    yield _fix(
        "averaged_buffers",
        "Recompute the running statistics of the averaged weights, after training",
        gain(before, after),
        seen.used,
        "torch.optim.swa_utils.update_bn(batches, averaged_model)",
    )


def _signs(batch: Rows, whole: Rows, count: int) -> Iterator[Fix]:
    """The fixes that replace noisy batch statistics, by what population statistics change in the loss of a batch.

    The root mean square over batches is taken: the changes of small batches can be large and still cancel in the mean.
    """
    change = float(np.sqrt(np.mean((batch.losses - whole.losses) ** 2)))
    share = change / max(abs(whole.mean.loss), 1e-12)
    used = f"{count} training batches: population statistics change the loss of a batch by {share:.0%}"
    larger = "Normalize over {} samples, with as many samples in a step: {}"
    yield Fix(
        "larger_batch",
        larger.format("4 times as many", "a larger batch instead of accumulated small ones"),
        None,
        int(share >= NOTICED),
        used,
        "DataLoader(dataset, batch_size=4 * batch_size)",
    )
    yield Fix(
        "sync_batch_norm",
        larger.format("more", "batch statistics over all processes"),
        None,
        int(share >= NOTICED),
        used,
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)",
    )
    yield Fix(
        "group_norm",
        "Use GroupNorm, at the same learning rate (a weak guess)",
        None,
        1 if share >= WORTH_GROUP_NORM else -1,
        used,
        'normscope.swap_norms(model, "group")',
    )
