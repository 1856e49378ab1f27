"""A guard over the first forward of a measurement: what the forward would change must be lent, else it is refused.

Two things can be changed without being lent: buffers of a module that no attribute of the model leads to (a global, a
class attribute), and tensors that are not copied (the weights of a large frozen part, tensors in objects). The guard
raises before such a module runs, and before the first operation that writes into such a tensor.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from normscope.isolation.module_contents import Contents


@contextmanager
def guarded_first_forward(
    model: nn.Module, contents: Contents, uncopied: Sequence[tuple[str, Tensor]]
) -> Iterator[None]:
    """Inside, the first call of a module of `contents` is watched, until that call returns or raises.

    Models with a compiled part are not watched: torch warns of hooks on all modules there.

    Args:
        uncopied: tensors that a forward must not write into, by name.
    """
    if contents.compiled:
        yield
        return
    guard = _Guard(model, contents, uncopied)
    hooks = register_module_forward_pre_hook(guard.before), register_module_forward_hook(guard.after, always_call=True)
    try:
        yield
    finally:
        guard.stop()
        for hook in hooks:
            hook.remove()


class _Guard:
    def __init__(self, model: nn.Module, contents: Contents, uncopied: Sequence[tuple[str, Tensor]]) -> None:
        self._model, self._contents = model, contents
        self._thread = threading.get_ident()
        self._writes = _Writes(uncopied) if uncopied else None
        self._open: list[nn.Module] = []
        self._writing = self._done = False

    def before(self, module: nn.Module, args: Any) -> None:
        if self._done or threading.get_ident() != self._thread:
            return
        if not self._open:
            if not self._contents.holds(module):
                return
            if self._writes is not None:
                self._writes.__enter__()
                self._writing = True
        elif self._is_unknown(module):
            raise TypeError(
                f"The forward calls a {type(module).__name__} that no attribute of the model leads to, so its buffers "
                "cannot be kept as they are. Register it in __init__: self.name = module."
            )
        self._open.append(module)

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._done and self._open and module is self._open[-1] and threading.get_ident() == self._thread:
            self._open.pop()
            if not self._open:
                self.stop()

    def _is_unknown(self, module: nn.Module) -> bool:
        """Whether the module has buffers and nothing leads to it; a layer just created is found by a second search."""
        if self._contents.holds(module) or not any(True for _ in nn.Module.buffers(module)):
            return False
        return not Contents(self._model).holds(module)

    def stop(self) -> None:
        if self._writing and self._writes is not None:
            self._writes.__exit__(None, None, None)
        self._writing, self._done = False, True


class _Writes(TorchDispatchMode):
    """Raises before an operation that writes into one of the tensors."""

    def __init__(self, tensors: Sequence[tuple[str, Tensor]]) -> None:
        super().__init__()
        self._names = {address: name for name, t in tensors if (address := _address(t))}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for number, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    given = args[number] if number < len(args) else kwargs.get(argument.name)
                    self._refuse(given)
        return func(*args, **kwargs)

    def _refuse(self, given: Any) -> None:
        for tensor in tree_leaves(given):
            if isinstance(tensor, Tensor) and (name := self._names.get(_address(tensor))):
                raise TypeError(
                    f"The forward writes into {name}, {tensor.numel():,} values of which no copy is lent. Measure "
                    "without that write, or register the tensor as a buffer: self.register_buffer(...)."
                )


def _address(tensor: Tensor) -> int:
    """The memory that the tensor looks into; 0 for one of a class without memory of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0
