"""A guard over the first pass of a measurement, for what the forward may change and no copy is lent of.

Two things are not lent: modules that no attribute of the model leads to (a global, a class attribute, a layer made in
the forward), and tensors that are not copied (the weights of a large frozen part, tensors in objects). The buffers of
such modules are remembered, and put back after the measurement. A write into such a tensor is refused before it is
made.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from normscope.isolation.module_contents import Contents
from normscope.isolation.signals import steady

# The contents of all models and losses that are lent at present; only one thread lends at a time.
_lent: list[Contents] = []


class Guard:
    """Watches the first pass of the modules in `contents`.

    The pass is what `first_pass` encloses, forward and backward; where nobody encloses one, the first call of a module.
    Not watched: models with a compiled part, since torch warns of hooks on all modules there; other threads; later
    passes.

    Args:
        uncopied: tensors that a forward must not write into, by name.
    """

    def __init__(self, contents: Contents, uncopied: Sequence[tuple[str, Tensor]]) -> None:
        self._contents = contents
        self._thread = threading.get_ident()
        self._writes = _Writes(uncopied) if uncopied else None
        self._open: list[nn.Module] = []
        self._writing = self._enclosed = False
        self._done = True
        # By the id of an unknown module: its dict of buffers, a copy of that dict, and copies of the buffers.
        self._unknown: dict[int, tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, the first pass is watched; at the end the buffers of unknown modules are put back."""
        _lent.append(self._contents)
        try:
            with nullcontext() if self._contents.compiled else self._hooked():
                yield
        finally:
            _lent.remove(self._contents)

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        self._done = False
        hooks = (
            register_module_forward_pre_hook(self.before),
            register_module_forward_hook(self.after, always_call=True),
        )
        try:
            yield
        finally:
            try:
                self.close()
            finally:
                for hook in hooks:
                    hook.remove()

    @contextmanager
    def first_pass(self) -> Iterator[None]:
        """Encloses a pass; only the first one is watched."""
        if self._done or self._enclosed or self._open or threading.get_ident() != self._thread:
            yield
            return
        self._begin()
        try:
            yield
        finally:
            self._stop()

    @steady
    def _begin(self) -> None:
        self._enclosed = True
        self._watch_writes()

    def _watch_writes(self) -> None:
        if self._writes is not None:
            self._writing = True
            self._writes.__enter__()

    @steady
    def before(self, module: nn.Module, args: Any) -> None:
        if self._done or threading.get_ident() != self._thread:
            return
        if not self._open and not self._enclosed:
            if not self._contents.holds(module):
                return
            self._watch_writes()
        elif id(module) not in self._unknown and not any(contents.holds(module) for contents in _lent):
            own = object.__getattribute__(module, "__dict__")["_buffers"]
            copies = {name: buffer.detach().clone() for name, buffer in dict.items(own) if buffer is not None}
            self._unknown[id(module)] = own, dict(own), copies
        self._open.append(module)

    @steady
    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._done and self._open and module is self._open[-1] and threading.get_ident() == self._thread:
            self._open.pop()
            if not self._open and not self._enclosed:
                self._stop()

    @steady
    def _stop(self) -> None:
        writing, self._writing, self._done = self._writing, False, True
        if writing and self._writes is not None:
            self._writes.__exit__(None, None, None)

    @steady
    def close(self) -> None:
        """Put back the buffers of unknown modules, those that have changed."""
        self._stop()
        with torch.no_grad():
            for own, before, copies in self._unknown.values():
                dict.update(own, before)
                for name, copy in copies.items():
                    if not torch.equal(before[name], copy):
                        before[name].data.copy_(copy)


class _Writes(TorchDispatchMode):
    """Raises before an operation that writes into one of the tensors."""

    supports_higher_order_operators = True

    def __init__(self, tensors: Sequence[tuple[str, Tensor]]) -> None:
        super().__init__()
        self._names = {address: (name, t.numel()) for name, t in tensors if (address := _address(t))}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        if schema is not None and schema.is_mutable:
            for number, argument in enumerate(schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._refuse(args[number] if number < len(args) else kwargs.get(argument.name))
        return func(*args, **kwargs)

    def _refuse(self, written: Any) -> None:
        for tensor in tree_leaves(written):
            if isinstance(tensor, Tensor) and (found := self._names.get(_address(tensor))):
                name, size = found
                # No TypeError: Python's `+=` would take one for a question, and add without writing in place.
                raise ValueError(
                    f"The forward writes into {name}, a tensor of {size:,} values of which no copy is lent. Measure "
                    "without that write, or keep the tensor as a buffer of the model."
                )


def _address(tensor: Tensor) -> int:
    """The memory that the tensor looks into; 0 for one of a class without memory of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0
