"""Statistics of the batch as constants: no derivative goes through them while this is asked for.

The values of a forward stay what they were: a measurement asks what a theory sees that takes statistics as given. It
asks for itself: other threads, which may train meanwhile, differentiate through theirs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# Torch's own storage of a thread goes with a backward pass into the threads it runs in; Python's does not.
_bindings: Any = torch._C
_KEY = "normscope.statistics_held"


def _depth() -> int:
    return _bindings._get_obj_in_tls(_KEY) if _bindings._is_key_in_tls(_KEY) else 0


@contextmanager
def statistics_held() -> Iterator[None]:
    """Inside, every normalizer of ours that takes statistics over the batch holds them constant."""
    before = _depth()
    _bindings._stash_obj_in_tls(_KEY, before + 1)
    try:
        yield
    finally:
        _bindings._stash_obj_in_tls(_KEY, before)


def held() -> bool:
    """Never in a compiled graph, which would keep the answer."""
    return not torch.compiler.is_compiling() and _depth() > 0


def constant(*statistics: Tensor) -> tuple[Tensor, ...]:
    """Without their derivatives where they are held."""
    return tuple(s.detach() for s in statistics) if held() else statistics
