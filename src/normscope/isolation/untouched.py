"""Do no harm: a measurement works on copies lent to the model, and everything is put back, also after an exception.

Nothing is undone by arithmetic (theta - a + a is not theta in floating point). While the context lasts, every trainable
parameter is a new leaf, every buffer and every other tensor or array a module holds is a clone; at the end the very
same objects are back in their places, never written: values, `.grad`, hooks, version counters and the autograd nodes
that DDP listens to. Attributes of modules (modes, counters, lists, dicts) are put back from a shallow copy, random
generators to their states. Compiled models run eagerly inside, so no new graph is made. Frozen parameters are cloned
too where they are no more than the trainable ones: a forward may write them, as that of a momentum encoder does. What
is not watched: a larger frozen network (a copy would cost too much), things outside the model's modules that its
forward writes (a hook of yours that appends to a global list), and what lies deeper than one level in a list or dict of
a module, in a tuple or in an object of a class of yours.
"""

import operator
import sys
from collections import deque
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.isolation.checkpointing import without_reentrant_checkpoints
from normscope.isolation.generators import Generators

Array = np.ndarray[Any, Any]
_CONTAINERS = (list, dict, set, deque)
INERT = frozenset({bool, int, float, str, tuple, type(None)})
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))


class Lent:
    """What the model works with inside `untouched`: leaves for its trainable parameters, clones of its buffers."""

    def __init__(self, model: nn.Module, only: Container[int] | None, dtype: torch.dtype | None) -> None:
        self.names: list[str] = []
        self.originals: list[nn.Parameter] = []
        self.leaves: list[nn.Parameter] = []
        self._places: list[tuple[Any, Any, Any]] = []
        self._copies = _Copies(dtype)
        self._arrays: list[tuple[Array, Array]] = []
        self._empty: list[Any] = []
        self._holders: list[Any] = []
        kept: list[Any] = []
        owned: list[object] = []
        lent = self._leaves(model, only, dtype)
        for module in model.modules():
            attributes = vars(module)
            self._holders += [attributes, module._buffers]
            for name, value in attributes.items():
                if type(value) in INERT:
                    continue
                if isinstance(value, _CONTAINERS):
                    (kept if value else self._empty).append(value)
                    if name not in _MODULE_ATTRIBUTES:
                        self._holders.append(value)
                        self._lend(value, lent)
                elif isinstance(value, np.ndarray):
                    self._arrays.append((value.copy(), value))
                    self._places.append((attributes, name, self._arrays[-1][0]))
                else:
                    owned.append(value)
            kept.append(attributes)
            for holder in (module._parameters, module._buffers, attributes):
                self._lend(holder, lent)
        self._kept = _Kept(kept)
        self.generators = Generators(owned)
        self.draws = True
        self._copies.refresh()

    def _leaves(self, model: nn.Module, only: Container[int] | None, dtype: torch.dtype | None) -> dict[int, Tensor]:
        copies = _Copies(dtype)
        more_move = 0
        for name, parameter in model.named_parameters():
            moves = parameter.requires_grad and (only is None or id(parameter) in only)
            more_move += parameter.numel() if moves else -parameter.numel()
            if moves:
                self.names.append(name)
                self.originals.append(parameter)
                self.leaves.append(_like(parameter, copies.of(parameter)))
        self._copy_frozen = more_move >= 0
        copies.refresh()
        return dict(zip(map(id, self.originals), self.leaves, strict=True))

    def _lend(self, holder: Any, lent: dict[int, Tensor]) -> None:
        """Copies for the tensors of `holder`; not for results of the last forward, nor for a large frozen network."""
        if isinstance(holder, set):
            return
        for key, held in holder.items() if isinstance(holder, dict) else enumerate(holder):
            if type(held) in INERT or not isinstance(held, Tensor):
                continue
            if id(held) not in lent:
                parameter = isinstance(held, nn.Parameter)
                wanted = self._copies.casts(held) or (self._copy_frozen and type(held) is nn.Parameter)
                if held.grad_fn is not None or (parameter and not wanted):
                    continue
                copy = self._copies.of(held)
                lent[id(held)] = _like(held, copy) if isinstance(held, nn.Parameter) else copy
            self._places.append((holder, key, lent[id(held)]))

    def place(self) -> None:
        for holder, key, tensor in self._places:
            holder[key] = tensor
        self._in_use = _Kept(self._holders)

    @contextmanager
    def holding(self, leaves: Sequence[Tensor], others: Sequence[Tensor]) -> Iterator[None]:
        """Inside, the model has `others` in the places of some of its leaves."""
        instead = {id(leaf): other for leaf, other in zip(leaves, others, strict=True)}
        places = [place for place in self._places if id(place[2]) in instead]
        try:
            for holder, key, leaf in places:
                holder[key] = instead[id(leaf)]
            yield
        finally:
            for holder, key, leaf in places:
                holder[key] = leaf

    def reset(self) -> None:
        """The state of the first moment for another forward: buffers, attributes, generators; the leaves stay.

        Once a forward has shown that it draws nothing, set `draws` to False: the generators need no care until the end.
        """
        self._in_use.put_back()
        self._copies.refresh()
        for copy, array in self._arrays:
            np.copyto(copy, array)
        if self.draws:
            self.generators.restore()

    def close(self) -> None:
        self._kept.put_back()
        for container in self._empty:
            container.clear()
        self.generators.restore()


def _like(parameter: nn.Parameter, copy: Tensor) -> nn.Parameter:
    """`copy` as a parameter, with the attributes that some libraries write on theirs."""
    lent = nn.Parameter(copy, requires_grad=parameter.requires_grad)
    vars(lent).update(vars(parameter))
    return lent


class _Copies:
    """Copies of tensors, filled together: a kernel for each dtype and device, not for each tensor.

    dtype: that of the copies of floating-point tensors, if not their own.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        self._groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}

    def casts(self, source: Tensor) -> bool:
        return self._dtype is not None and source.is_floating_point() and source.dtype != self._dtype

    def of(self, source: Tensor) -> Tensor:
        """A copy of `source`, without its values until `refresh`."""
        dtype = self._dtype if self.casts(source) else source.dtype
        strided = source.layout == torch.strided
        copy = torch.empty_like(source, dtype=dtype) if strided else source.detach().clone()
        copies, sources = self._groups.setdefault((source.dtype, source.device), ([], []))
        # By `.data`, so that filling it again does not count as a change of what a kept graph has saved.
        copies.append(copy.data)
        sources.append(source)
        return copy

    @torch.no_grad()
    def refresh(self) -> None:
        for copies, sources in self._groups.values():
            torch._foreach_copy_(copies, sources)


class _Kept:
    """Containers and what they held; by identity, since values may be tensors, which have no plain equality."""

    def __init__(self, containers: Sequence[Any]) -> None:
        self._containers = containers
        self._held = [container.copy() for container in containers]

    def put_back(self) -> None:
        if _same(self._containers, self._held):
            return
        for container, held in zip(self._containers, self._held, strict=True):
            # The attributes of a module share their keys with others of its class for as long as none is taken out.
            if not isinstance(container, dict) or container.keys() != held.keys():
                container.clear()
            (container.extend if isinstance(container, (list, deque)) else container.update)(held)


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether they hold the very same objects; one comparison for all, since it is made before each pass."""
    return [*map(len, some)] == [*map(len, others)] and all(map(operator.is_, _contents(some), _contents(others)))


def _contents(containers: Sequence[Any]) -> Iterator[Any]:
    values = [container.values() for container in containers if isinstance(container, dict)]
    return chain(chain.from_iterable(containers), chain.from_iterable(values))


@contextmanager
def untouched(
    model: nn.Module, *, only: Container[int] | None = None, dtype: torch.dtype | None = None
) -> Iterator[Lent]:
    """Lends `model` copies of all it could write; whatever happens inside, it leaves as it came.

    Leaves are lent for the trainable parameters, or for those of them whose id is in `only`. With `dtype` the copies,
    also of the other parameters, are of that dtype: a model that trains in half precision is measured in a wider one.

    Re-entrant: inside another `untouched` it lends copies of the copies. Gradients are on inside, whatever the mode
    outside, and a compiled model runs eagerly.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        >>> with untouched(model) as lent:
        ...     lent.leaves[0].data.zero_()
        ...     model(torch.eye(2)).sum().backward()
        tensor([[0., 0.],
                [0., 0.]])
        >>> int(model[1].num_batches_tracked), model[0].weight.grad is None
        (0, True)
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(without_reentrant_checkpoints())
        lent = Lent(model, only, dtype)
        lent.generators.save()
        stack.callback(lent.close)
        lent.place()
        yield lent
