"""Setups of the usual tasks, so that a case says only what is special about it."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from faults.data import Split, accuracy, chunks, digits, images, shuffled, text
from faults.development.networks import byte_loss, minus_byte_loss
from normscope import Setup

Optimizer = Callable[[Iterable[Any]], torch.optim.Optimizer]


def sgd(lr: float, momentum: float = 0.9, **others: Any) -> Optimizer:
    """SGD with momentum, as a function of the parameters."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum, **others)


def adamw(lr: float, **others: Any) -> Optimizer:
    """AdamW, as a function of the parameters."""
    return lambda parameters: torch.optim.AdamW(parameters, lr=lr, **others)


def classify(
    model: nn.Module, split: Split, optimizer: Optimizer, *, size: int, steps: int, seed: int, **others: Any
) -> Setup:
    """A training of a classifier by cross-entropy, with accuracy as its metric; `others` are fields of `Setup`."""
    accumulate = others.get("accumulate", 1)
    fields: dict[str, Any] = {
        "batches": shuffled(split.x, split.y, size=size, steps=steps * accumulate, seed=seed),
        "eval_batches": chunks(split.x_eval, split.y_eval),
        "metric": accuracy,
        "steps": steps,
    }
    trained = [p for p in model.parameters() if p.requires_grad]
    return Setup(model, nn.CrossEntropyLoss(), optimizer=optimizer(trained), **(fields | others))


def digit_setup(model: nn.Module, optimizer: Optimizer, **others: Any) -> Setup:
    """Handwritten digits of 8 x 8 pixels."""
    return classify(model, digits(), optimizer, **others)


def image_setup(model: nn.Module, optimizer: Optimizer, **others: Any) -> Setup:
    """Synthetic images of 28 x 28 pixels."""
    return classify(model, images(), optimizer, **others)


def byte_setup(
    model: nn.Module, optimizer: Optimizer, *, size: int, steps: int, seed: int, length: int = 32, **others: Any
) -> Setup:
    """A language model over bytes; the metric is minus the cross-entropy of the next byte."""
    split = text(length)
    fields: dict[str, Any] = {
        "batches": shuffled(split.x, split.y, size=size, steps=steps * others.get("accumulate", 1), seed=seed),
        "eval_batches": chunks(split.x_eval, split.y_eval, size=64),
        "metric": minus_byte_loss,
        "steps": steps,
    }
    return Setup(model, byte_loss, optimizer=optimizer(model.parameters()), **(fields | others))


def decayed(setup: Setup) -> Setup:
    """The same setup with a learning rate that falls to zero along half a cosine."""
    assert setup.optimizer is not None
    assert setup.steps is not None
    return replace(setup, scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(setup.optimizer, setup.steps))
