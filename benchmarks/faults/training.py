"""Train a case's setup and evaluate it: the plain loop that a user has.

The loop takes the model in the mode in which it comes, and does nothing that the setup does not say.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from normscope import Setup


def train(setup: Setup, steps: int | None = None) -> list[float]:
    """Train for `steps` (the setup's own by default); return the loss of each step. Stops at a loss that is not finite.

    Raises:
        ValueError: a setup without optimizer, or without a number of steps.
    """
    return list(stepwise(setup, steps))


def stepwise(setup: Setup, steps: int | None = None) -> Iterator[float]:
    """The losses of `train` one by one, each after its step."""
    steps = setup.steps if steps is None else steps
    if setup.optimizer is None or steps is None or setup.batches is None:
        raise ValueError("A training needs batches, an optimizer and a number of steps.")
    batches = itertools.chain.from_iterable(itertools.repeat(setup.batches))
    for _ in range(steps):
        loss = _step(setup, batches)
        if math.isfinite(loss):
            if setup.scheduler is not None:
                setup.scheduler.step()
            if setup.averaged_model is not None:
                setup.averaged_model.update_parameters(setup.model)
        yield loss
        if not math.isfinite(loss):
            return


def _step(setup: Setup, batches: Iterator[Any]) -> float:
    optimizer = setup.optimizer
    assert optimizer is not None
    if setup.training_step is not None:
        return float(setup.training_step(setup.model, next(batches), optimizer))
    optimizer.zero_grad()
    total = 0.0
    for _ in range(setup.accumulate):
        batch = next(batches)
        with mixed(setup):
            loss = setup.objective(setup.model, batch) / setup.accumulate
        loss.backward()
        total += float(loss.detach())
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if callable(setup.clip):
        setup.clip(parameters)
    elif setup.clip is not None:
        nn.utils.clip_grad_norm_(parameters, setup.clip)
    optimizer.step()
    return total


def mixed(setup: Setup) -> contextlib.AbstractContextManager[Any]:
    """The setup's autocast."""
    return contextlib.nullcontext() if setup.autocast is None else torch.autocast("cpu", setup.autocast)


@torch.no_grad()
def evaluate(setup: Setup) -> float:
    """The metric over all evaluation batches in eval mode, weighted by samples; without a metric, minus the loss.

    The averaged weights are evaluated where there are any. Without loss_fn, the model is called on the batch's first
    part.
    """
    model = setup.model if setup.averaged_model is None else setup.averaged_model
    modes = {module: module.training for module in model.modules()}
    model.eval()
    total, count = 0.0, 0
    try:
        for batch in setup.eval_batches or ():
            with mixed(setup):
                value = _value(setup, model, batch)
            size = len(batch[0])
            total, count = total + size * value, count + size
    finally:
        for module, mode in modes.items():
            module.training = mode
    if not count:
        raise ValueError("There are no evaluation batches.")
    return total / count


def _value(setup: Setup, model: nn.Module, batch: Any) -> float:
    if setup.metric is None:
        return -float(setup.objective(model, batch))
    if setup.loss_fn is None:
        return float(setup.metric(model(batch[0]), batch[1]))
    inputs, targets = setup.objective.parts(batch)
    return float(setup.metric(setup.objective.outputs(model, inputs), targets))
