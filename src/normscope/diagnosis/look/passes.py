"""Passes of a copied setup: as training makes them with nothing moving, a short training, and evaluation.

The model comes in the mode in which it trains, and no pass changes that mode. A `training_step` of the user's is run
with every learning rate at zero where nothing is to move.
"""

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from normscope.isolation.batch_copies import Copies
from normscope.isolation.loaders import to_device
from normscope.setup import Setup
from normscope.training import Training, train

# A forward costs about a third of a gradient pass: a backward pass has two products for each of its one.
FORWARD = 1 / 3


class NotLooked(Exception):
    """A part of the look is not to be had; the message is the reason."""


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def taken(setup: Setup, batch: Any) -> Any:
    """A copy of a batch on the model's device, since a forward may write into it."""
    return Copies(to_device(batch, device_of(setup.model))).take()


def cast(setup: Setup) -> AbstractContextManager[Any]:
    """The setup's autocast."""
    if setup.autocast is None:
        return nullcontext()
    return torch.autocast(device_of(setup.model).type, setup.autocast)


def still_pass(setup: Setup, batch: Any, *, backward: bool = False) -> float:
    """One pass as training makes it, on a copied setup whose weights stay; returns the loss.

    Args:
        backward: also take the gradient; a training_step does so in any case.
    """
    batch = taken(setup, batch)
    if setup.training_step is not None:
        assert setup.optimizer is not None
        _rest(setup.optimizer)
        return float(torch.as_tensor(setup.training_step(setup.model, batch, setup.optimizer)).detach())
    with nullcontext() if backward else torch.no_grad():
        with cast(setup):
            loss = setup.objective(setup.model, batch)
        if loss.ndim:
            raise ValueError(f"loss_fn must return a scalar; got shape {tuple(loss.shape)}. Take its mean or its sum.")
        if backward and loss.requires_grad:
            setup.model.zero_grad()
            loss.backward()
    return float(loss.detach())


def _rest(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0


def trained(setup: Setup, batches: Iterable[Any], steps: int, *, deadline: float, explode: float) -> Training:
    """Train a copied setup in place for at most `steps` steps, until `deadline` on the clock of `time.perf_counter`."""
    assert setup.optimizer is not None
    with _mode_of_the_setup(setup.model):
        return train(
            setup.model,
            setup.loss_fn,
            _until(deadline, (taken(setup, batch) for batch in batches)),
            setup.optimizer,
            forward=setup.forward,
            scheduler=setup.scheduler,
            accumulate=setup.accumulate,
            clip=setup.clip,
            scaler=setup.scaler,
            averaged_model=setup.averaged_model,
            training_step=setup.training_step,
            autocast=setup.autocast,
            steps=steps,
            explode=explode,
        )


def _until(deadline: float, batches: Iterator[Any]) -> Iterator[Any]:
    return itertools.takewhile(lambda _: time.perf_counter() < deadline, batches)


class _FirstCall:
    """In place of a module's `train`: the first call changes nothing, later ones are those of a training_step."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self, mode: bool = True) -> Any:
        vars(self._module).pop("train", None)
        return self._module


@contextmanager
def _mode_of_the_setup(model: nn.Module) -> Iterator[None]:
    """While this context lasts, `normscope.train` does not switch the model to train mode at its start."""
    vars(model)["train"] = _FirstCall(model)
    try:
        yield
    finally:
        vars(model).pop("train", None)


@torch.no_grad()
def judged(setup: Setup, model: nn.Module, batch: Any) -> tuple[float, float]:
    """The loss and the metric of `model` on a batch; nan for what the setup does not have.

    Without loss_fn, a metric is taken of the model's outputs on the batch's first part.

    Raises:
        NotLooked: there is only a training_step, which cannot evaluate.
    """
    if setup.training_step is not None and setup.loss_fn is setup.forward is setup.metric is None:
        raise NotLooked("there is only a training_step, and no loss_fn, forward or metric to evaluate by")
    batch = taken(setup, batch)
    with cast(setup):
        if setup.loss_fn is None and setup.metric is not None:
            outputs, targets, loss = model(batch[0]), batch[1], torch.nan
        elif setup.loss_fn is None:
            return float(setup.objective(model, batch)), torch.nan
        else:
            inputs, targets = setup.objective.parts(batch)
            outputs = setup.objective.outputs(model, inputs)
            loss = float(setup.objective.loss(outputs, targets))
    return loss, torch.nan if setup.metric is None else float(setup.metric(outputs, targets))
