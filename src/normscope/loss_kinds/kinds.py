"""The kinds of loss: one entry of `KINDS` each, with the gradient by which a user's own function is recognized.

`losses/known_losses.py` has the functions of each kind, and lists the places that a new kind needs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normscope.losses.kind_names import CROSS_ENTROPY, OTHER, SQUARED
from normscope.losses.known_losses import known_loss


class GradientForm(NamedTuple):
    """The form of the gradient of one kind of loss.

    Args:
        phi: its gradient with respect to the outputs z is w (phi(z, live) - q), of shape (rows, classes, columns).
        couples: whether phi joins the outputs of one row, as a softmax does.
        slope: the derivative of phi where each output stands alone.
    """

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
    CROSS_ENTROPY: GradientForm(softmax, True, _sigmoid_slope),
    SQUARED: GradientForm(lambda z, live: z, False, torch.ones_like),
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
        >>> kind_by_name(torch.nn.functional.cross_entropy), kind_by_name(torch.nn.MSELoss()), kind_by_name(torch.abs)
        ('cross_entropy', 'squared', '')
    """
    facts = known_loss(loss_fn)
    return facts.kind if facts is not None and facts.kind in KINDS else ""
