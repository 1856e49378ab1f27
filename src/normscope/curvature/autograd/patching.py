"""Functions of torch answered by others under their own names, for a while.

By name and not by a mode: `autograd.grad` runs with modes switched off, and activation checkpointing calls layers again
there. All threads see it, so what is put in a name has to be right for the others too; whoever leaves first, the name
is torch's again when the last one has left.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

_lock = Lock()
_stacks: dict[tuple[int, str], list[Any]] = {}


@contextmanager
def renamed(names: Sequence[tuple[dict[str, Any], str]], make: Callable[[str, Any], Any]) -> Iterator[None]:
    """Inside, each of `names` in a module's namespace is make(name, what it was)."""
    put: list[Any] = []
    try:
        for home, name in names:
            with _lock:
                stack = _stacks.setdefault((id(home), name), [home[name]])
                put.append(make(name, stack[-1]))
                stack.append(put[-1])
                home[name] = put[-1]
        yield
    finally:
        for (home, name), function in zip(names, put, strict=False):
            with _lock:
                stack = _stacks[id(home), name]
                stack.remove(function)
                home[name] = stack[-1]
                if len(stack) == 1:
                    del _stacks[id(home), name]
