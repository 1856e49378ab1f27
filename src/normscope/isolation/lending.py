"""Lend copies to a model while it is measured, and put everything back at the end, also after an exception.

Nothing is undone by arithmetic (theta - a + a is not theta in floating point). While the context `untouched` lasts,
every trainable parameter is a new leaf, and every buffer and every other tensor or array that a module holds is a
clone. At the end the original objects are back in their places. They were never written: this covers their values,
`.grad`, hooks, version counters and the autograd nodes that DDP listens to.

Putting back runs no code of the user's (`containers.py`) and goes on after a step that fails. At the end every object
is compared with the original, and an error names the ones that differ. Compiled models run eagerly inside, so no new
graph is compiled. Frozen parameters are cloned too if they are no more numerous than the trainable ones, since a
forward may write them (a momentum encoder does).

If a forward creates something (hooks, buffers, layers, a cache, a flag), that is undone before the next forward of the
measurement, and at the end. This covers attributes and slots of modules, hooks, the entries of containers at any depth,
and attributes of other objects with the containers in them. So the user's next forward creates them for the first time.

Refused by name before anything moves: iterators and tensors that cannot be copied; a first forward that writes into a
large frozen part (a copy would cost too much) or into a tensor in an object (`first_forward.py`).

Not covered: things outside the model's modules that its forward writes (a global flag, a class attribute, a file);
arrays and bytes in objects, tensors in sets, objects within objects; writes into a large frozen part by `p.data = ...`,
in a backward pass or in another thread.
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
from normscope.isolation.refusals import NotLent, NotPutBack
from normscope.isolation.signals import deliver, steady

# Entries of frozen parameters that are always copied.
_LEAST_ROOM = 1 << 20


class Lent:
    """The copies that a model works with inside `untouched`.

    names, originals, leaves: the trainable parameters' names, the parameters themselves, and the leaves lent for them.
    generators: the random generators that the forward may draw from. draws: whether they are restored before every
    pass; set it to False once a forward has shown that it draws nothing.
    """

    def __init__(self, model: nn.Module, only: Container[int] | None, dtype: torch.dtype | None) -> None:
        contents = Contents(model)
        self.contents, self.uncopied = contents, list(contents.guarded)
        self.names: list[str] = []
        self.originals: list[nn.Parameter] = []
        self.leaves: list[nn.Parameter] = []
        self._copies = _Copies(dtype)
        lent = self._leaves(contents, only, dtype)
        self._places = [place for own in contents.tensors if (place := self._instead(own, lent)) is not None]
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

    def _copy(self, own: Tensor, where: tuple[str, Any], lent: dict[int, Tensor]) -> Tensor | None:
        """A copy of the model's `own` tensor to lend; None for results of a forward and for a large frozen part."""
        if id(own) not in lent:
            parameter = isinstance(own, nn.Parameter)
            is_copied = self._copies.casts(own) or (id(own) in self._copied and type(own) is nn.Parameter)
            if own.grad_fn is not None or (parameter and not is_copied):
                if parameter:
                    self.uncopied.append((called(where), own))
                return None
            copy = self._copies.of(own, called(where))
            lent[id(own)] = _like(own, copy) if isinstance(own, nn.Parameter) else copy
        return lent[id(own)]

    def _instead(self, place: Place, lent: dict[int, Tensor]) -> Place | None:
        registered = place.where[1] in ("_parameters", "_buffers")
        copy = self._copy(place.value, (place.where[0], place.key) if registered else place.where, lent)
        return None if copy is None else Place(place.put, place.holder, place.key, copy, place.where)

    def _tuple(self, place: Place, lent: dict[int, Tensor]) -> Place:
        def member(own: Any) -> Any:
            copy = self._copy(own, place.where, lent) if issubclass(type(own), Tensor) else None
            return own if copy is None else copy

        members = [*map(member, tuple.__iter__(place.value))]
        return place._replace(value=tuple.__new__(type(place.value), members))

    def place(self) -> None:
        """Put the copies into the model."""
        for put, holder, key, lent, _ in self._places:
            put(holder, key, lent)
        self._in_use = _State(self.contents)

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
        self._copies.refresh()
        for copy, array in self._arrays:
            np.copyto(copy, array)
        if self.draws:
            self.generators.restore()

    @steady
    def close(self) -> None:
        """Put everything back, going on after failures, and raise at the end if anything could not be put back."""
        raise_first(self._kept.put_back() + self.generators.put_back())


class _State:
    """The present entries of a model's containers and slots."""

    def __init__(self, contents: Contents) -> None:
        self._kept = Kept(contents.containers)
        self._empty = contents.empty
        self._slots = [(module, member, read_slot(module, member)) for module, member, _ in contents.slots]

    def put_back(self) -> list[tuple[str, BaseException]]:
        """Restore the entries; returns the names of those that could not be restored, each with the exception."""
        failed = [] if self._kept.same() else [(called(name), error) for name, error in self._kept.put_back()]
        # `_empty` lists plain containers only, so `any` runs no `__bool__` of the user's.
        if any(self._empty):
            for container in self._empty:
                container.clear()
        for module, member, value in self._slots:
            if read_slot(module, member) is not value:
                put_slot(module, member, value)
        return failed


def raise_first(failed: Sequence[tuple[str, BaseException]]) -> None:
    """Raise one error that names everything that could not be put back; everything else is back by then."""
    for _, error in failed:
        if not isinstance(error, Exception):
            raise error
    if failed:
        places = "; ".join(f"{name} ({type(error).__name__}: {error})" for name, error in failed)
        raise NotPutBack(f"Everything but this was put back after a measurement: {places}.") from failed[0][1]


def _like(parameter: nn.Parameter, copy: Tensor) -> nn.Parameter:
    """`copy` as a parameter, with the attributes that some libraries set on parameters."""
    lent = nn.Parameter(copy, requires_grad=parameter.requires_grad)
    vars(lent).update(vars(parameter))
    return lent


class _Copies:
    """Copies of tensors that are filled together, by one kernel for each dtype and device.

    dtype: the dtype of copies of floating-point tensors; None keeps each tensor's own.
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
            raise NotLent(
                f"{name} is a {type(source).__name__} that cannot be copied ({error}), so a measurement could not put "
                "it back. Take it out of the model, or make its class copyable."
            ) from error
        copies, sources = self._groups.setdefault((source.dtype, source.device), ([], []))
        # `.data` has no version counter: filling the copy again must not invalidate a graph that saved it.
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
    """Lend `model` copies of everything it could write; at the end the model is as it was, whatever happens inside.

    Gradients are enabled inside, whatever the mode outside, and a compiled model runs eagerly. The context is
    re-entrant: inside another `untouched` it lends copies of the copies.

    Args:
        model: the module to measure.
        only: ids of the trainable parameters that get leaves; by default all of them.
        dtype: dtype of all floating-point copies, for a model that trains in half precision and is measured in a wider
            one. By default each copy keeps its dtype.

    Raises:
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
        lent = Lent(model, only, dtype)
        lent.generators.save()
        stack.callback(lent.close)
        lent.place()
        stack.enter_context(guarded_first_forward(lent.contents, lent.uncopied))
        yield lent
