"""What a number means for the person who trains: one sentence, its formula and its source."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn import functional as F

from normscope import losses

SQUARED, CROSS_ENTROPY, OTHER = "squared", "cross_entropy", "other"

# Measured, not derived: on BatchNorm networks with cross-entropy plain gradient descent shows no rise of the loss at
# twice the quadratic limit, a first rise between 2 and 10 times, and still trains at 10 times.
NOT_A_LIMIT = (
    "With cross-entropy this is no limit of training: networks go on learning well beyond the learning rate at which "
    "the local quadratic would rise."
)


@dataclass(frozen=True)
class Verdict:
    """good: True, False, or None where the number alone does not decide."""

    about: str
    good: bool | None
    text: str
    formula: str
    source: str

    def __str__(self) -> str:
        mark = {True: "good", False: "look", None: "note"}[self.good]
        return f"[{mark}] {self.text} ({self.formula}; {self.source})"


def loss_kind(loss_fn: Callable[..., Any] | None) -> str:
    """Squared error, cross-entropy or another: verdicts are worded for the loss at hand.

    Example:
        >>> loss_kind(nn.CrossEntropyLoss()), loss_kind(losses.half_sse), loss_kind(F.l1_loss)
        ('cross_entropy', 'squared', 'other')
    """
    if loss_fn in (losses.half_mse, losses.half_sse, losses.mse, F.mse_loss) or isinstance(loss_fn, nn.MSELoss):
        return SQUARED
    entropies = (F.cross_entropy, F.nll_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits)
    modules = (nn.CrossEntropyLoss, nn.NLLLoss, nn.BCELoss, nn.BCEWithLogitsLoss)
    return CROSS_ENTROPY if loss_fn in entropies or isinstance(loss_fn, modules) else OTHER
