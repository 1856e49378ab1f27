"""The kind of the loss in a snapshot, found from the outputs of one more forward pass."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.isolation.batch_copies import lent_objective
from normscope.isolation.batch_loss import BatchLoss
from normscope.loss_kinds import LossKind, kind_of
from normscope.loss_kinds.computed_by_model import kind_inside
from normscope.objective import main_output

UNKNOWN = LossKind("unknown")


def kind_here(batch_loss: BatchLoss) -> LossKind:
    """The kind of the loss on this batch, at the present parameters; costs one forward pass."""
    objective, loss_kind = lent_objective(batch_loss.task.objective), UNKNOWN

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal loss_kind
        inputs, targets = objective.parts(batch)
        if objective.loss_fn is None:
            with torch.enable_grad():
                outputs = objective.outputs(model, inputs)
                value = objective.loss(outputs, targets)
                loss_kind = kind_inside(value, main_output(outputs))
            return value.detach()
        outputs = objective.outputs(model, inputs)
        loss_kind = kind_of(objective.loss_fn, outputs, targets)
        return objective.loss(outputs, targets)

    BatchLoss(replace(batch_loss.task, loss=loss), batch_loss.lent, batch_loss.batch).value()
    return loss_kind


def unknown_kind_note(loss_kind: LossKind) -> list[str]:
    """A note if the loss is neither cross-entropy nor squared error, so that verdicts stay cautious."""
    return [f"The loss counts as neither cross-entropy nor squared error: {loss_kind.why}."] if loss_kind.why else []
