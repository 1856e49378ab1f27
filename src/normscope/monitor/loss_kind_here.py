"""The kind of the loss in a snapshot, found from the outputs of one more forward pass."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.isolation.batch_loss import BatchLoss
from normscope.loss_kinds import Kind, kind_of
from normscope.loss_kinds.inside import kind_inside
from normscope.objective import main_output

UNKNOWN = Kind("unknown")


def kind_here(at: BatchLoss) -> Kind:
    """The kind of the loss on this batch, with the parameters where the leaves stand."""
    objective, found = at.task.objective.lent(), UNKNOWN

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal found
        inputs, targets = objective.parts(batch)
        if objective.loss_fn is None:
            with torch.enable_grad():
                outputs = objective.outputs(model, inputs)
                value = objective.loss(outputs, targets)
                found = kind_inside(value, main_output(outputs))
            return value.detach()
        outputs = objective.outputs(model, inputs)
        found = kind_of(objective.loss_fn, outputs, targets)
        return objective.loss(outputs, targets)

    BatchLoss(replace(at.task, loss=loss), at.lent, at.batch).value()
    return found


def noted(kind: Kind) -> list[str]:
    """A note on a loss for which verdicts cannot be worded."""
    return [f"The loss counts as neither cross-entropy nor squared error: {kind.why}."] if kind.why else []
