"""Do no harm: a measurement works on copies lent to the model, and everything is put back, also after an exception.

Nothing is undone by arithmetic (theta - a + a is not theta in floating point). While the context lasts, every trainable
parameter is a new leaf, every buffer and every other tensor or array a module holds is a clone; at the end the very
same objects are back in their places, never written: values, `.grad`, hooks, version counters and the autograd nodes
that DDP listens to. Putting back runs no code of the user's (`containers.py`), goes on after a step that fails, looks
at the end whether each thing is the object it was, and then says what is not. Compiled models run eagerly inside, so no
new graph is made. Frozen parameters are cloned too, the smallest first, up to the size of the trainable ones: a forward
may write them, as that of a momentum encoder does.

A forward that creates something (hooks, buffers, layers, a cache, a flag that says so) has all of it undone, before the
next forward of the measurement as at the end: modules' attributes and slots, hooks, what containers hold at any depth,
attributes of objects and the containers in them. The user's own next forward then is the first, and creates it.

Refused by name before anything moves: iterators that cannot be copied, tensors that cannot; a first forward that writes
into a larger frozen part (a copy would cost too much) or into a tensor in an object, or that calls a module with
buffers which no attribute leads to (`first_forward.py`). Not watched: what lies outside the model's modules (a global
flag, a class attribute, a file), arrays and bytes in objects, tensors in sets.
"""

import itertools
import sys
import weakref
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.isolation.checkpointing import without_reentrant_checkpoints
from normscope.isolation.containers import Kept
from normscope.isolation.first_forward import guarded_first_forward
from normscope.isolation.generators import Generators
from normscope.isolation.module_contents import Contents, Place, called, lent_iterator, put_slot, read_slot
from normscope.isolation.one_at_a_time import turn
from normscope.isolation.signals import deliver, steady

# Entries of frozen parameters that are always copied.
_LEAST_ROOM = 1 << 20


class Lent:
    """What the model works with inside `untouched`: leaves for its trainable parameters, clones of its buffers."""

    def __init__(self, model: nn.Module, only: Container[int] | None, dtype: torch.dtype | None) -> None:
        contents = Contents(model)
        self.contents, self.uncopied = contents, list(contents.guarded)
        self.names: list[str] = []
        self.originals: list[nn.Parameter] = []
        self.leaves: list[nn.Parameter] = []
        self._copies = _Copies(dtype)
        lent = self._leaves(contents, only, dtype)
        self._places = [place for found in contents.tensors if (place := self._instead(found, lent)) is not None]
        self._places += [self._tuple(place, lent) for place in contents.tuples]
        tied = [place for place in contents.references if id(place.value) in lent]
        self._places += [place._replace(value=weakref.ref(lent[id(place.value)])) for place in tied]
        self._places += [place._replace(value=lent_iterator(place)) for place in contents.iterators]
        arrays = {id(place.value): place.value.copy() for place in contents.arrays}
        self._arrays = [(arrays[id(place.value)], place.value) for place in contents.arrays]
        self._places += [place._replace(value=arrays[id(place.value)]) for place in contents.arrays]
        self._kept = self._in_use = _State(contents)
        self.generators = Generators(contents.owned)
        self.draws = True
        self._copies.refresh()

    def _leaves(self, contents: Contents, only: Container[int] | None, dtype: torch.dtype | None) -> dict[int, Tensor]:
        copies = _Copies(dtype)
        frozen: list[nn.Parameter] = []
        for name, parameter, registered in contents.parameters:
            moves = parameter.requires_grad and (registered if only is None else id(parameter) in only)
            if not moves:
                frozen.append(parameter)
            else:
                self.names.append(name)
                self.originals.append(parameter)
                self.leaves.append(_like(parameter, copies.of(parameter, name)))
        room = max(sum(leaf.numel() for leaf in self.leaves), _LEAST_ROOM)
        # The smallest first: a momentum encoder beside a large frozen backbone is copied, the backbone is not.
        frozen.sort(key=nn.Parameter.numel)
        sizes = itertools.accumulate(map(nn.Parameter.numel, frozen))
        self._copied = {id(p) for p, size in zip(frozen, sizes, strict=True) if size <= room}
        copies.refresh()
        return dict(zip(map(id, self.originals), self.leaves, strict=True))

    def _copy(self, held: Tensor, where: tuple[str, Any], lent: dict[int, Tensor]) -> Tensor | None:
        """A copy to lend; none of results of the last forward, nor of a large frozen network."""
        if id(held) not in lent:
            parameter = isinstance(held, nn.Parameter)
            wanted = self._copies.casts(held) or (id(held) in self._copied and type(held) is nn.Parameter)
            if held.grad_fn is not None or (parameter and not wanted):
                if parameter:
                    self.uncopied.append((called(where), held))
                return None
            copy = self._copies.of(held, called(where))
            lent[id(held)] = _like(held, copy) if isinstance(held, nn.Parameter) else copy
        return lent[id(held)]

    def _instead(self, place: Place, lent: dict[int, Tensor]) -> Place | None:
        copy = self._copy(place.value, place.where, lent)
        return None if copy is None else Place(place.put, place.holder, place.key, copy, place.where)

    def _tuple(self, place: Place, lent: dict[int, Tensor]) -> Place:
        def member(held: Any) -> Any:
            copy = self._copy(held, place.where, lent) if issubclass(type(held), Tensor) else None
            return held if copy is None else copy

        members = [*map(member, tuple.__iter__(place.value))]
        return place._replace(value=tuple.__new__(type(place.value), members))

    def place(self) -> None:
        for put, holder, key, lent, _ in self._places:
            put(holder, key, lent)
        self._in_use = _State(self.contents)

    @contextmanager
    def holding(self, leaves: Sequence[Tensor], others: Sequence[Tensor]) -> Iterator[None]:
        """Inside, the model has `others` in the places of some of its leaves."""
        instead = {id(leaf): other for leaf, other in zip(leaves, others, strict=True)}
        places = [place for place in self._places if id(place.value) in instead]
        try:
            for put, holder, key, leaf, _ in places:
                put(holder, key, instead[id(leaf)])
            yield
        finally:
            for put, holder, key, leaf, _ in places:
                put(holder, key, leaf)

    def reset(self) -> None:
        """The state of the first moment for another forward: buffers, attributes, generators; the leaves stay.

        Once a forward has shown that it draws nothing, set `draws` to False: the generators need no care until the end.
        """
        deliver()
        self._reset()

    @steady
    def _reset(self) -> None:
        raise_first(self._in_use.put_back())
        self._copies.refresh()
        for copy, array in self._arrays:
            np.copyto(copy, array)
        if self.draws:
            self.generators.restore()

    @steady
    def close(self) -> None:
        """Puts everything back, each thing whatever happens to the others, and raises what went wrong at the end."""
        raise_first(self._kept.put_back() + self.generators.put_back())


class _State:
    """What the containers and slots of a model hold now."""

    def __init__(self, contents: Contents) -> None:
        self._kept = Kept(contents.containers)
        self._empty = contents.empty
        self._slots = [(module, member, read_slot(module, member)) for module, member, _ in contents.slots]

    def put_back(self) -> list[tuple[str, BaseException]]:
        """Names of those that could not be, with what was raised."""
        failed = [] if self._kept.same() else [(called(name), error) for name, error in self._kept.put_back()]
        # Plain ones, so that asking for their truth runs nothing of the user's.
        if any(self._empty):
            for container in self._empty:
                container.clear()
        for module, member, value in self._slots:
            if read_slot(module, member) is not value:
                put_slot(module, member, value)
        return failed


def raise_first(failed: Sequence[tuple[str, BaseException]]) -> None:
    """One error for all that could not be put back; everything else is back by now."""
    for _, error in failed:
        if not isinstance(error, Exception):
            raise error
    if failed:
        what = "; ".join(f"{name} ({type(error).__name__}: {error})" for name, error in failed)
        raise RuntimeError(f"Everything but this was put back after a measurement: {what}.") from failed[0][1]


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

    def of(self, source: Tensor, name: str) -> Tensor:
        """A copy of `source`, without its values until `refresh`."""
        dtype = self._dtype if self.casts(source) else source.dtype
        strided = source.layout == torch.strided
        try:
            copy = torch.empty_like(source, dtype=dtype) if strided else source.detach().clone()
        except Exception as error:
            raise TypeError(
                f"{name} is a {type(source).__name__} that cannot be copied ({error}), so the model cannot be measured "
                "without a trace. Take it out of the model, or give its class a copy."
            ) from error
        copies, sources = self._groups.setdefault((source.dtype, source.device), ([], []))
        # By `.data`, so that filling it again does not count as a change of what a kept graph has saved.
        copies.append(copy.data)
        sources.append(source)
        return copy

    @torch.no_grad()
    def refresh(self) -> None:
        for copies, sources in self._groups.values():
            torch._foreach_copy_(copies, sources)


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
    with turn, ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(without_reentrant_checkpoints())
        lent = Lent(model, only, dtype)
        lent.generators.save()
        stack.callback(lent.close)
        lent.place()
        stack.enter_context(guarded_first_forward(model, lent.contents, lent.uncopied))
        yield lent
