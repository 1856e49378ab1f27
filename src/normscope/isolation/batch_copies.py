"""Lend copies of a batch and of a loss to one pass, so that a measurement writes into neither."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from normscope.isolation.lending import untouched
from normscope.objective import Objective

_INERT = frozenset({bool, int, float, str, type(None)})


class Copies:
    """Copies of a batch for a forward that may write into them; the batch itself never changes.

    Tensors are copied once, and copied again after a pass has changed the copies, so that a stored graph keeps the
    tensors it has used. Containers and objects of other classes are copied for every pass. tensors: the present copies.
    """

    def __init__(self, given: Any) -> None:
        self._given, self._form = tree_flatten(given)
        self._fill()

    def _fill(self) -> None:
        self._parts = [_copy(part) for part in self._given]
        self.tensors = [part for part in self._parts if isinstance(part, Tensor)]
        self._versions = [tensor._version for tensor in self.tensors]

    def take(self) -> Any:
        """A copy of the batch."""
        if self.written():
            self._fill()
        return tree_unflatten([p if isinstance(p, Tensor) else _copy(p) for p in self._parts], self._form)

    def written(self) -> bool:
        """Whether a pass has written into the copies since they were made."""
        return [tensor._version for tensor in self.tensors] != self._versions

    def changed(self) -> bool:
        """Whether a pass has changed values of the copies."""
        pairs = zip(self._parts, self._given, strict=True)
        return self.written() and not all(torch.equal(a, b) for a, b in pairs if isinstance(a, Tensor))


def _copy(part: Any) -> Any:
    """A copy of a tensor, or of an object that may hold tensors, such as a batch of graphs."""
    if not isinstance(part, Tensor):
        return part if type(part) in _INERT else copy.deepcopy(part)
    return part.detach().clone().requires_grad_(part.requires_grad)


def lent_loss(loss_fn: Callable[..., Any], dtype: torch.dtype | None = None) -> Callable[..., Any]:
    """`loss_fn` working on copies of the buffers and attributes it could write, in `dtype` if given.

    torch's own losses write nothing; others may keep a running centre, a queue or a counter.
    """
    written_by_the_user = isinstance(loss_fn, nn.Module) and not type(loss_fn).__module__.startswith("torch.nn.")
    if not isinstance(loss_fn, nn.Module) or (not written_by_the_user and dtype is None):
        return loss_fn

    def loss(*args: Any, **kwargs: Any) -> Any:
        with untouched(loss_fn, only=(), dtype=dtype):
            return loss_fn(*args, **kwargs)

    return loss


def lent_objective(objective: Objective) -> Objective:
    """The objective with a loss that works on copies of its buffers and attributes."""
    return objective if objective.loss_fn is None else Objective(lent_loss(objective.loss_fn), objective.forward)
