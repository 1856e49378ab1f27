"""Tensors that a loss depends on, that require a gradient, and that are no parameters of the model.

A weight in a closure (`lambda z: z @ w`), a learnable weight of the loss, another network in `forward=`: no leaf is
lent for them, so a measurement holds them constant. They are found in the graph of the first gradient.
"""

import weakref
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

# Shapes that a message lists; the others are counted.
_MOST_SHAPES = 4


class Outside:
    """The outside tensors of one lent model; empty until `look` has seen a graph.

    Args:
        known: ids of the tensors that may be in the graph. named: names of tensors that the model holds and that are no
            parameters, by their ids.
    """

    def __init__(self, known: Container[int], named: Mapping[int, str]) -> None:
        self._known, self._named = known, named
        self._found: dict[int, weakref.ref[Tensor]] = {}
        self._looked = False

    def look(self, loss: Tensor, batch: Any, loss_fn: Any) -> None:
        """Look through the graph of `loss`, once.

        Args:
            batch: its tensors are no outside tensors. loss_fn: the loss; it is lent copies of its parameters, so the
                graph does not show the parameters themselves.
        """
        if self._looked or loss.grad_fn is None:
            return
        self._looked = True
        own = {id(part) for part in tree_leaves(batch)}
        of_the_loss = loss_fn.parameters() if isinstance(loss_fn, nn.Module) else ()
        for leaf in (*leaves_of(loss.grad_fn), *(p for p in of_the_loss if p.requires_grad)):
            if id(leaf) in self._named or (id(leaf) not in self._known and id(leaf) not in own):
                self._found[id(leaf)] = weakref.ref(leaf)

    @property
    def tensors(self) -> list[Tensor]:
        """The outside tensors that are still alive: a leaf that the forward created ends with its graph."""
        return [tensor for reference in self._found.values() if (tensor := reference()) is not None]

    def among(self, ids: Container[int]) -> list[Tensor]:
        return [tensor for tensor in self.tensors if id(tensor) in ids]

    def note(self) -> list[str]:
        """A note on the outside tensors, if there are any."""
        if not self.tensors:
            return []
        return [
            f"The loss also depends on {shapes_of(self.tensors, self._named)}: held constant, though it requires "
            "gradients, since it is no parameter of the model. Register what trains in the model, as an nn.Parameter."
        ]


def shapes_of(tensors: Sequence[Tensor], names: Mapping[int, str] | None = None) -> str:
    """The number of tensors and the names or shapes of the first ones.

    Example:
        >>> import torch
        >>> shapes_of([torch.zeros(2, 3), torch.zeros(5)])
        '2 tensors, of shapes (2, 3) and (5,)'
    """
    shapes = [" ".join(filter(None, [(names or {}).get(id(t), ""), str(tuple(t.shape))])) for t in tensors]
    if len(shapes) == 1:
        return f"1 tensor, of shape {shapes[0]}"
    last = shapes[-1] if len(shapes) <= _MOST_SHAPES else f"{len(shapes) - _MOST_SHAPES + 1} more"
    return f"{len(shapes)} tensors, of shapes {', '.join(shapes[: min(_MOST_SHAPES, len(shapes)) - 1])} and {last}"


def leaves_of(root: Any) -> Iterator[Tensor]:
    """The leaves of the graph below a node."""
    for node in nodes([root]):
        if type(node).__name__ == "AccumulateGrad":
            yield node.variable


def nodes(roots: Iterable[Any]) -> Iterator[Any]:
    """The nodes of the graph below some nodes."""
    waiting = [root for root in roots if root is not None]
    reached = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        new = {following for following, _ in node.next_functions if following is not None} - reached
        waiting += new
        reached |= new
