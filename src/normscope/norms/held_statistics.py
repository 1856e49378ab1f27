"""Hold batch statistics constant ("frozen"): inside `statistics_held`, no derivative goes through them.

The values of a forward do not change. The setting belongs to one thread: other threads, which may train meanwhile,
still differentiate through their statistics.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# torch passes its own thread-local storage on to the threads of a backward pass; Python's `threading.local` is not.
_bindings: Any = torch._C
_KEY = "normscope.statistics_held"


def _depth() -> int:
    return _bindings._get_obj_in_tls(_KEY) if _bindings._is_key_in_tls(_KEY) else 0


@contextmanager
def statistics_held() -> Iterator[None]:
    """While this context lasts, every normscope normalizer with batch statistics holds them constant."""
    before = _depth()
    _bindings._stash_obj_in_tls(_KEY, before + 1)
    try:
        yield
    finally:
        _bindings._stash_obj_in_tls(_KEY, before)


def held() -> bool:
    """Whether statistics are held; always False in a compiled graph, which would store the answer."""
    return not torch.compiler.is_compiling() and _depth() > 0


def constant(*statistics: Tensor) -> tuple[Tensor, ...]:
    """The statistics, detached if they are held constant."""
    return tuple(s.detach() for s in statistics) if held() else statistics
