r"""The gain that another momentum of BatchNorm's running statistics would have had, predicted from batch statistics.

    gain(a) = cost of the present running statistics - cost(a)

A cost is the loss with running statistics minus the loss with population statistics at the same weights. For cost(a)
the running statistics of momentum a are averaged from the batch statistics of single calls. While they are averaged the
weights move on, and the averages lag behind. So a copy takes further steps, and cost(a) is the mean over several ends
of them; earlier calls are taken to have been like those at the present weights. The number of calls stays that of the
present network, so that a momentum too small for the training keeps its share of the first values.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from normscope.diagnosis.batch_statistics import Record, population, with_momentum
from normscope.diagnosis.gap_evaluations import Evaluator, Rows, evaluating, gain
from normscope.diagnosis.gap_result import Amount
from normscope.diagnosis.training_copies import advance
from normscope.setup import Setup

# Steps of the copy before each end at which running statistics are judged.
STRETCHES = (20, 10, 10)
# Orders of the batches where no copy can be trained.
_ORDERS = 4
Costs = dict[float, Amount]


def momentum_gains(
    evaluator: Evaluator,
    training: Sequence[Any],
    judged: Sequence[Any],
    momenta: Sequence[float],
    *,
    record: Record,
    spare: Setup | None,
    rehearsed: bool,
    running: Rows,
    best: Rows,
    seed: int,
) -> dict[float, Amount]:
    """The predicted gain of each momentum.

    Args:
        evaluator: the network at its present weights.
        training: training batches. judged: the batches to judge on.
        record: batch statistics of the latest calls. rehearsed: whether they come from the steps that led to the
            present weights, and not from the present weights alone.
        spare: a copy of the training that can take further steps.
        running, best: the rows with the present running statistics, and with population statistics.
    """
    tracked = {name: int(layer.num_batches_tracked) for name, layer in evaluator.layers.items()}
    if rehearsed:
        ends = [_costs(evaluator, judged, record, tracked, best, momenta)]
    elif spare is not None:
        ends = [*_further_ends(spare, training, judged, record, tracked, momenta, seed)]
    else:
        orders = ({name: _rotated(calls, turn) for name, calls in record.items()} for turn in range(_ORDERS))
        ends = [_costs(evaluator, judged, each, tracked, best, momenta) for each in orders]
    present = gain(running, best)
    gains = {}
    for momentum in momenta:
        losses, metrics = ([getattr(end[momentum], name) for end in ends] for name in ("loss", "metric"))
        gains[momentum] = replace(
            present,
            loss=present.loss - float(np.mean(losses)),
            metric=present.metric - float(np.mean(metrics)),
            loss_stderr=math.hypot(present.loss_stderr, float(np.std(losses))),
            metric_stderr=math.hypot(present.metric_stderr, float(np.std(metrics))),
        )
    return gains


def _costs(
    evaluator: Evaluator,
    judged: Sequence[Any],
    record: Record,
    tracked: dict[str, int],
    best: Rows,
    momenta: Sequence[float],
) -> Costs:
    costs = {}
    for momentum in momenta:
        statistics = {n: with_momentum(record[n], momentum, count) for n, count in tracked.items() if record.get(n)}
        costs[momentum] = gain(evaluator.evaluate(judged, "eval", statistics), best)
    return costs


def _further_ends(
    spare: Setup,
    training: Sequence[Any],
    judged: Sequence[Any],
    record: Record,
    tracked: dict[str, int],
    momenta: Sequence[float],
    seed: int,
) -> Iterator[Costs]:
    record, taken = {name: list(calls) for name, calls in record.items()}, 0
    for steps in STRETCHES:
        # The batches go on where the last stretch ended.
        order = [*training[taken:], *training[:taken]]
        taken = (taken + steps * spare.accumulate) % len(training)
        new = advance(spare, order, steps)
        for name, calls in record.items():
            calls += new.get(name, [])
        with evaluating(spare, spare.model, seed) as evaluator:
            own = population(evaluator.evaluate(training, "train").record)
            best = evaluator.evaluate(judged, "eval", own)
            yield _costs(evaluator, judged, record, tracked, best, momenta)


def _rotated(calls: Sequence[Any], turn: int) -> list[Any]:
    """The calls in another order, so that another one is the last."""
    shift = turn * len(calls) // _ORDERS
    return [*calls[shift:], *calls[:shift]]
