"""Lend copies to a model while it is measured, and put everything back at the end, also after an exception.

Nothing is undone by arithmetic (theta - a + a is not theta in floating point). While the context `untouched` lasts,
every trainable parameter is a new leaf, and every buffer and every other tensor or array that a module holds is a
clone. At the end the original objects are back in their places. They were never written: this covers their values,
`.grad`, hooks, version counters and the autograd nodes that DDP listens to.

Putting back runs no code of the user's (`containers.py`) and goes on after a step that fails. At the end every object
is compared with the original, and an error names the ones that differ. Compiled models run eagerly inside, so no new
graph is compiled. Frozen parameters are cloned too if they are no more numerous than the trainable ones, since a
forward may write them (a momentum encoder does).

`tensor.data = other` is undone too, before each forward and at the end, also for parts that are not copied.

If a forward creates something (hooks, buffers, layers, a cache, a flag), that is undone before the next forward of the
measurement, and at the end. This covers attributes and slots of modules, hooks, the entries of containers at any depth,
and attributes of other objects with the containers in them. So the user's next forward creates them for the first time.

Refused by name before anything moves: iterators and tensors that cannot be copied; a first forward that writes into a
large frozen part (a copy would cost too much) or into a tensor in an object (`first_forward.py`).

Not covered: things outside the model's modules that its forward writes (a global flag, a class attribute, a file);
arrays and bytes in objects, tensors in sets, objects within objects; writes into a large frozen part after the first
pass, in another thread, or in a compiled model.
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
from normscope.isolation.first_forward import Guard
from normscope.isolation.generators import Generators
from normscope.isolation.memory_bound import refuse_beyond
from normscope.isolation.module_contents import Contents, ReplaceableEntry, called, lent_iterator
from normscope.isolation.one_at_a_time import turn
from normscope.isolation.outside_tensors import Outside
from normscope.isolation.present_entries import PresentEntries, raise_first
from normscope.isolation.signals import deliver, steady
from normscope.isolation.tensor_copies import Attached, TensorCopies, as_parameter

# Entries of frozen parameters that are always copied.
_LEAST_ROOM = 1 << 20


class Lent:
    """The copies that a model works with inside `untouched`.

    names, originals, leaves: the trainable parameters' names, the parameters themselves, and the leaves lent for them.
    generators: the random generators that the forward may draw from. restores_generators: whether they are restored
    before every pass; set it to False once a forward has shown that it draws nothing. forwards, backwards: passes made
    on the copies so far; a backward costs two forwards. size: bytes of all copies. outside: tensors that the loss
    depends on and that are no parameters of the model.

    Args:
        only, dtype, max_memory, beside: those of `untouched`.

    Raises:
        TooMuchMemory: the copies would take more than `max_memory`; none is made then.
    """

    def __init__(
        self,
        model: nn.Module,
        only: Container[int] | None,
        dtype: torch.dtype | None,
        max_memory: float | None = None,
        beside: int = 0,
    ) -> None:
        contents = Contents(model)
        self.contents, self.uncopied = contents, list(contents.guarded)
        self.names: list[str] = []
        self.originals: list[nn.Parameter] = []
        self._copies = TensorCopies(dtype)
        self._choose(contents, only)
        self.size = self._size(contents)
        refuse_beyond(max_memory, self.size, beside)
        self._free: dict[int, str] = {}
        lent = self._leaves(dtype)
        self._places = [place for own in contents.tensors if (place := self._instead(own, lent)) is not None]
        self._places += [self._tuple(place, lent) for place in contents.tuples]
        tied = [place for place in contents.references if id(place.value) in lent]
        self._places += [place._replace(value=weakref.ref(lent[id(place.value)])) for place in tied]
        self._places += [place._replace(value=lent_iterator(place)) for place in contents.iterators]
        arrays = {id(place.value): place.value.copy() for place in contents.arrays}
        self._arrays = [(arrays[id(place.value)], place.value) for place in contents.arrays]
        self._places += [place._replace(value=arrays[id(place.value)]) for place in contents.arrays]
        self._kept = self._in_use = PresentEntries(contents)
        self.generators = Generators(contents.owned)
        self._attached = Attached(t for place in self._places if isinstance(t := place.value, Tensor))
        self._uncopied = Attached(own for _, own in self.uncopied)
        # In the graph of a loss, a trainable parameter itself was reached past the modules that hold its leaf.
        past = dict(zip(map(id, self.originals), self.names, strict=True))
        known = {*map(id, lent.values()), *(id(p) for _, p, _ in contents.parameters)}
        self.outside = Outside(known, self._free | past)
        self.guard = Guard(contents, self.uncopied)
        self.restores_generators = True
        self.forwards = self.backwards = 0
        self._copies.refresh()

    def _choose(self, contents: Contents, only: Container[int] | None) -> None:
        """The parameters that get leaves, and the frozen ones that are copied."""
        frozen: list[nn.Parameter] = []
        for name, parameter, registered in contents.parameters:
            moves = parameter.requires_grad and (registered if only is None else id(parameter) in only)
            if not moves:
                frozen.append(parameter)
            else:
                self.names.append(name)
                self.originals.append(parameter)
        room = max(sum(parameter.numel() for parameter in self.originals), _LEAST_ROOM)
        # The smallest first: a momentum encoder beside a large frozen backbone is copied, the backbone is not.
        frozen.sort(key=nn.Parameter.numel)
        sizes = itertools.accumulate(map(nn.Parameter.numel, frozen))
        self._copied = {id(p) for p, size in zip(frozen, sizes, strict=True) if size <= room}

    def _size(self, contents: Contents) -> int:
        """Bytes of all copies of tensors and arrays."""
        copied: dict[int, Tensor] = {id(parameter): parameter for parameter in self.originals}
        members = [own for place in contents.tuples for own in tuple.__iter__(place.value)]
        for own in [place.value for place in contents.tensors] + members:
            if issubclass(type(own), Tensor) and self._gets_copy(own):
                copied[id(own)] = own
        arrays = {id(place.value): place.value.nbytes for place in contents.arrays}
        return sum(map(self._copies.size_of, copied.values())) + sum(arrays.values())

    def _leaves(self, dtype: torch.dtype | None) -> dict[int, Tensor]:
        copies = TensorCopies(dtype)
        pairs = zip(self.names, self.originals, strict=True)
        self.leaves = [as_parameter(parameter, copies.of(parameter, name)) for name, parameter in pairs]
        copies.refresh()
        return dict(zip(map(id, self.originals), self.leaves, strict=True))

    def _gets_copy(self, own: Tensor) -> bool:
        """Whether a tensor of the model is copied: results of a forward and a large frozen part are not."""
        if own.grad_fn is not None:
            return False
        copied = id(own) in self._copied and type(own) is nn.Parameter
        return copied or not isinstance(own, nn.Parameter) or self._copies.casts(own)

    def _copy(self, own: Tensor, where: tuple[str, Any], lent: dict[int, Tensor]) -> Tensor | None:
        """A copy of the model's `own` tensor to lend, or None."""
        if id(own) not in lent:
            if not self._gets_copy(own):
                if isinstance(own, nn.Parameter):
                    self.uncopied.append((called(where), own))
                return None
            copy = self._copies.of(own, called(where))
            if isinstance(own, nn.Parameter):
                copy = as_parameter(own, copy)
            elif own.requires_grad:
                # The copy takes part in the graph as the user's tensor does, and is found there: it is no parameter.
                self._free[id(copy.requires_grad_())] = called(where)
            lent[id(own)] = copy
        return lent[id(own)]

    def _instead(self, place: ReplaceableEntry, lent: dict[int, Tensor]) -> ReplaceableEntry | None:
        registered = place.where[1] in ("_parameters", "_buffers")
        copy = self._copy(place.value, (place.where[0], place.key) if registered else place.where, lent)
        return None if copy is None else ReplaceableEntry(place.put, place.holder, place.key, copy, place.where)

    def _tuple(self, place: ReplaceableEntry, lent: dict[int, Tensor]) -> ReplaceableEntry:
        def member(own: Any) -> Any:
            copy = self._copy(own, place.where, lent) if issubclass(type(own), Tensor) else None
            return own if copy is None else copy

        members = [*map(member, tuple.__iter__(place.value))]
        return place._replace(value=tuple.__new__(type(place.value), members))

    @property
    def gradient_passes(self) -> float:
        """The cost of the passes made so far; a gradient pass is one forward and one backward."""
        return (self.forwards + 2 * self.backwards) / 3

    def place(self) -> None:
        """Put the copies into the model."""
        for put, holder, key, lent, _ in self._places:
            put(holder, key, lent)
        self._in_use = PresentEntries(self.contents)

    @contextmanager
    def holding(self, leaves: Sequence[Tensor], others: Sequence[Tensor]) -> Iterator[None]:
        """While this context lasts, the model holds `others` instead of some of its leaves."""
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
        """Restore buffers, attributes and generators to their first state, before another forward; the leaves stay."""
        deliver()
        self._reset()

    @steady
    def _reset(self) -> None:
        raise_first(self._in_use.put_back())
        self._attached.put_back()
        self._uncopied.put_back()
        self._copies.refresh()
        for copy, array in self._arrays:
            np.copyto(copy, array)
        if self.restores_generators:
            self.generators.restore()

    @steady
    def close(self) -> None:
        """Put everything back, going on after failures, and raise at the end if anything could not be put back."""
        failed = self._kept.put_back() + self.generators.put_back()
        self._uncopied.put_back()
        raise_first(failed)


@contextmanager
def untouched(
    model: nn.Module,
    *,
    only: Container[int] | None = None,
    dtype: torch.dtype | None = None,
    max_memory: float | None = None,
    beside: int = 0,
) -> Iterator[Lent]:
    """Lend `model` copies of everything it could write; at the end the model is as it was, whatever happens inside.

    Gradients are enabled inside, whatever the mode outside, and a compiled model runs eagerly. The context is
    re-entrant: inside another `untouched` it lends copies of the copies.

    Args:
        model: the module to measure.
        only: ids of the trainable parameters that get leaves; by default all of them.
        dtype: dtype of all floating-point copies, for a model that trains in half precision and is measured in a wider
            one. By default each copy keeps its dtype.
        max_memory: bytes that all copies may take. None: no limit.
        beside: bytes of copies that are made elsewhere, of the batch above all, and count too.

    Raises:
        TooMuchMemory: before anything moves, if the copies would take more than `max_memory`.
        NotLent: before anything moves, if the model holds an iterator or a tensor that cannot be copied.
        NotPutBack: at the end, if something could not be put back.

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
        lent = Lent(model, only, dtype, max_memory, beside)
        lent.generators.save()
        stack.callback(lent.close)
        lent.place()
        stack.enter_context(lent.guard.watching())
        yield lent
