"""The kinds of loss that recommendations and verdicts distinguish, and the losses known by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn import functional as F

from normscope import losses

SQUARED, CROSS_ENTROPY, OTHER = "squared", "cross_entropy", "other"
_SQUARED = (losses.half_mse, losses.half_sse, losses.mse, F.mse_loss)
_ENTROPIES = (F.cross_entropy, F.binary_cross_entropy_with_logits)


@dataclass(frozen=True)
class LossKind:
    """The kind of a loss.

    name: "squared", "cross_entropy" or "other". why: the reason for "other". convex: whether the gradients at the
    chosen points are those of a function that can be convex in the outputs.
    """

    name: str
    why: str = ""
    convex: bool = True


FLAT = LossKind(OTHER, "it does not change with the outputs")


def kind_by_name(loss_fn: Callable[..., Any] | None) -> str:
    """The kind of a loss function of torch or normscope that is known by its identity; "" for any other.

    Example:
        >>> kind_by_name(F.cross_entropy), kind_by_name(nn.MSELoss()), kind_by_name(F.nll_loss)
        ('cross_entropy', 'squared', '')
    """
    if type(loss_fn) is nn.MSELoss or any(loss_fn is known for known in _SQUARED):
        return SQUARED
    if type(loss_fn) in (nn.CrossEntropyLoss, nn.BCEWithLogitsLoss) or any(loss_fn is known for known in _ENTROPIES):
        return CROSS_ENTROPY
    return ""
