"""The kind of the loss in a snapshot, found from the outputs of one more forward pass."""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from normscope import losses
from normscope.isolation.copies import lending
from normscope.loss_kinds import OTHER, Kind, kind_of
from normscope.observe.loss import BatchLoss

UNKNOWN = Kind("unknown")


def kind_here(at: BatchLoss) -> Kind:
    """The kind of the loss on this batch, with the parameters where the leaves stand."""
    if at.task.loss_fn is None:
        return Kind(OTHER, "forward= gives the loss and no outputs to find its kind by")
    loss_fn, found = lending(at.task.loss_fn), UNKNOWN

    def forward(model: nn.Module, batch: Any) -> Tensor:
        nonlocal found
        x, y = losses.pair(batch)
        output = model(x)
        found = kind_of(loss_fn, output, y)
        loss: Tensor = loss_fn(output, y)
        return loss

    BatchLoss(replace(at.task, forward=forward), at.lent, at.batch).value()
    return found


def noted(kind: Kind) -> list[str]:
    """A note on a loss for which verdicts cannot be worded."""
    return [f"The loss counts as neither cross-entropy nor squared error: {kind.why}."] if kind.why else []
