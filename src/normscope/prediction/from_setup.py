"""The arguments of `predict` that an `ns.Setup` gives: the model, the loss by its name, and the momentum."""

from typing import Any, NamedTuple

import torch
from torch import nn

from normscope.losses.known_losses import PREDICTED_LOSSES
from normscope.messages import quoted
from normscope.prediction.loss_name import name_of_loss
from normscope.setup import Setup


class FromSetup(NamedTuple):
    """The parts of a setup that `predict` uses; note: a sentence on an optimizer it has no theory for, or ""."""

    model: nn.Module
    loss: str
    momentum: float
    nesterov: bool
    note: str


def from_setup(setup: Setup, loss: str | None) -> FromSetup:
    """The model, loss and momentum of a setup.

    Args:
        setup: its batches are not read.
        loss: the name of the loss, where the caller has handed one in.

    Raises:
        ValueError: the setup's loss is none that `predict` knows, or its parameter groups differ in momentum.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> from_setup(Setup(layer, nn.MSELoss(), [], torch.optim.SGD(layer.parameters(), momentum=0.9)), None)[1:4]
        ('mse', 0.9, False)
    """
    name, optimizer = loss or _name_of(setup), setup.optimizer
    if optimizer is None:
        return FromSetup(setup.model, name, 0.0, False, "")
    if not isinstance(optimizer, torch.optim.SGD):
        kind = type(optimizer).__name__
        note = f"eta* is that of gradient descent and not of the setup's {kind}: ns.measure gives that of {kind}."
        return FromSetup(setup.model, name, 0.0, False, note)
    settings = {(float(group["momentum"]), bool(group["nesterov"])) for group in optimizer.param_groups}
    if len(settings) > 1:
        raise ValueError("The setup's parameter groups differ in momentum; hand in the model, and momentum=.")
    return FromSetup(setup.model, name, *settings.pop(), "")


def named_loss(loss_fn: Any, of: str = "") -> str:
    """The name of a loss that is handed in as a function.

    Args:
        of: words for the loss in the message.

    Raises:
        ValueError: no loss that `predict` knows has the same Hessian with respect to the outputs.
    """
    name = name_of_loss(loss_fn) if loss_fn is not None else ""
    if not name:
        known = ", ".join(PREDICTED_LOSSES)
        raise ValueError(
            f"predict does not know {of or f'this loss ({quoted(loss_fn)})'}. Name the one nearest to it with "
            f"loss= (--loss): {known}; or measure it with ns.measure."
        )
    return name


def _name_of(setup: Setup) -> str:
    return named_loss(
        None if setup.forward is not None else setup.loss_fn, f"the loss of this setup ({setup.objective.name})"
    )
