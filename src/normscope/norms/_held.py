"""Statistics of the batch as constants: no derivative goes through them while this is asked for.

The values of a forward stay what they were: a measurement asks what a theory sees that takes statistics as given.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_depth = 0


@contextmanager
def statistics_held() -> Iterator[None]:
    """Inside, every normalizer of ours that takes statistics over the batch holds them constant."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def held() -> bool:
    """Never in a compiled graph, which would keep the answer."""
    return not torch.compiler.is_compiling() and _depth > 0


def constant(*statistics: Tensor) -> tuple[Tensor, ...]:
    """Without their derivatives where they are held."""
    return tuple(s.detach() for s in statistics) if held() else statistics
