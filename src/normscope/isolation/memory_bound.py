"""A bound on the memory of copies, checked before any copy is made."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from normscope.isolation.refusals import TooMuchMemory


def check_max_memory(max_memory: Any) -> None:
    """Refuse a bound that is no number of bytes."""
    number = isinstance(max_memory, (int, float)) and not isinstance(max_memory, bool)
    if max_memory is not None and not (number and max_memory > 0):
        raise ValueError(f"max_memory is a number of bytes above 0, such as 2 * 2**30 for 2 GiB; got {max_memory!r}.")


def bytes_of(value: Any, dtype: torch.dtype | None = None) -> int:
    """Bytes of all tensors in a batch, floating-point ones cast to `dtype` if given.

    Example:
        >>> bytes_of((torch.ones(2, 3), torch.tensor([1, 2]))), bytes_of(torch.ones(2, 3), torch.float64)
        (40, 48)
    """
    tensors = [part for part in tree_leaves(value) if isinstance(part, Tensor)]
    return sum(t.numel() * (dtype if dtype and t.is_floating_point() else t.dtype).itemsize for t in tensors)


def refuse_beyond(max_memory: float | None, lent: int, beside: int) -> None:
    """Refuse copies of more than `max_memory` bytes.

    Args:
        lent: bytes of the copies of parameters and buffers. beside: bytes of the other copies.
    """
    needed = lent + beside
    if max_memory is not None and needed > max_memory:
        raise TooMuchMemory(
            f"The copies need {in_words(needed)}: {in_words(lent)} for parameters and buffers, {in_words(beside)} for "
            f"the batch and earlier copies; max_memory is {in_words(max_memory)}. Hand in max_memory={needed} or more, "
            "or a smaller batch."
        )


def in_words(size: float) -> str:
    """A number of bytes in words.

    Example:
        >>> in_words(3 * 2**29), in_words(40)
        ('1.5 GiB', '40 bytes')
    """
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 2**power:
            return f"{size / 2**power:.4g} {unit}"
    return f"{size:g} bytes"
