"""The kinds of loss: one entry of `KINDS` each, with known functions and gradient.

To add a kind of loss, these places need it:

    KINDS (here)                            its functions and its gradient
    loss_kinds/meaning.py                   its name, and what a learning rate beyond eta* means for it
    curvature/operators/fisher.py           its distribution p(y | f), for the Fisher matrix
    prediction/loss_factor.py               its lambda over that of half_mse, for `predict`
    loss_mismatch.py                        outputs and targets that it would take for something else
    stability/first_guess.py                its share of the critical rate, once measured

Without the last one, no learning rate to start with is named.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope import losses
from normscope.loss_kinds.meaning import CROSS_ENTROPY, OTHER, SQUARED


class Facts(NamedTuple):
    """What is known of one kind of loss.

    Args:
        known: its modules of torch, and its functions of torch and normscope.
        phi: its gradient with respect to the outputs z is w (phi(z, live) - q), of shape (rows, classes, columns).
        couples: whether phi joins the outputs of one row, as a softmax does.
        slope: the derivative of phi where each output stands alone.
    """

    known: tuple[Callable[..., Any], ...]
    phi: Callable[[Tensor, Tensor], Tensor]
    couples: bool
    slope: Callable[[Tensor], Tensor]


def softmax(z: Tensor, live: Tensor) -> Tensor:
    """The softmax over the classes that the loss reads; the sigmoid if there is only one class."""
    if z.shape[1] == 1:
        return z.sigmoid()
    return z.masked_fill(~live, -torch.inf).softmax(1).nan_to_num(0.0)


def _sigmoid_slope(z: Tensor) -> Tensor:
    p = z.sigmoid()
    return p * (1 - p)


# In the order in which they are tried.
KINDS = {
    CROSS_ENTROPY: Facts(
        (nn.CrossEntropyLoss, nn.BCEWithLogitsLoss, F.cross_entropy, F.binary_cross_entropy_with_logits),
        softmax,
        True,
        _sigmoid_slope,
    ),
    SQUARED: Facts(
        (nn.MSELoss, F.mse_loss, losses.half_mse, losses.half_sse, losses.mse),
        lambda z, live: z,
        False,
        torch.ones_like,
    ),
}


@dataclass(frozen=True)
class LossKind:
    """The kind of a loss.

    Attributes:
        name: a key of `KINDS`, or "other".
        why: the reason for "other".
        convex: whether the gradients at the chosen points are those of a function that can be convex in the outputs.
    """

    name: str
    why: str = ""
    convex: bool = True


FLAT = LossKind(OTHER, "it does not change with the outputs")


def kind_by_name(loss_fn: Callable[..., Any] | None) -> str:
    """The kind of a loss function of torch or normscope that is known by its identity; "" for any other.

    Args:
        loss_fn: a loss function or module.

    Returns:
        A key of `KINDS`, or "".

    Example:
        >>> kind_by_name(F.cross_entropy), kind_by_name(nn.MSELoss()), kind_by_name(F.nll_loss)
        ('cross_entropy', 'squared', '')
    """
    function = type(loss_fn) if isinstance(loss_fn, nn.Module) else loss_fn
    return next((name for name, facts in KINDS.items() if any(function is known for known in facts.known)), "")
