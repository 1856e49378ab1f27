"""Freed memory kept between matrix-vector products: glibc would trim its heap after each of them.

The C library gives the end of its heap back to the system once some tens of megabytes are free there, and the memory
that a product frees lies there. The next product then has to map and clear every page again: 9,000 and more for a
product of the CNN at batch 256, a fifth of its time. Whether that happens depends on the other contents of the heap.
While products are made, a small block at the end of the heap, with free blocks before it, prevents the trimming.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Pages that no product uses are not mapped, but for one (or a huge one) at each block's end, so the blocks take
# addresses and hardly any memory.
_BLOCK, _BLOCKS = 4 << 20, 64


@contextmanager
def untrimmed_heap(device: torch.device) -> Iterator[None]:
    """Inside, memory that a product frees stays with the process; without effect where the C library is not glibc."""
    last = _last_of_many() if device.type == "cpu" else None
    try:
        yield
    finally:
        del last


def _last_of_many() -> torch.UntypedStorage | None:
    """The last of many blocks in a row, the others freed; None where the system does not give so many addresses."""
    try:
        # A first block, freed at once: after it glibc takes blocks of this size from the heap, not from the system.
        _block()
        return [_block() for _ in range(_BLOCKS)][-1]
    except RuntimeError:
        return None


def _block() -> torch.UntypedStorage:
    """A storage on the CPU; deterministic algorithms would fill a tensor, and a default device would move it."""
    return torch.UntypedStorage(_BLOCK, device="cpu")
