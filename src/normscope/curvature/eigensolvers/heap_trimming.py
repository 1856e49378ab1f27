"""Memory that products find again: on a CPU the system would take it back after each of them and clear it for the next.

The C library gives the end of its heap back once some tens of megabytes are free there, and all that a product frees
lies there. Every page then has to be mapped and cleared anew, 9,000 and more for a product of the CNN at batch 256, a
fifth of its time; whether, hangs on what else happens to lie on the heap. Here something small does for as long as
products are made: a block at the end of it, with free ones before.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Pages that no product uses are not mapped (but for one, or a huge one, at each block's end), so the size is that of
# addresses.
_BLOCK, _BLOCKS = 4 << 20, 64


@contextmanager
def room(device: torch.device) -> Iterator[None]:
    """Around products; only a C library that gives memory back so, glibc's, knows the difference."""
    last = _last_of_many() if device.type == "cpu" else None
    try:
        yield
    finally:
        del last


def _last_of_many() -> torch.UntypedStorage | None:
    """The last of blocks in a row, the others free again; None where so many addresses are not to be had."""
    try:
        # Freed at once: from now on blocks of this size come from the heap, not each from the system.
        _block()
        return [_block() for _ in range(_BLOCKS)][-1]
    except RuntimeError:
        return None


def _block() -> torch.UntypedStorage:
    """No tensor: deterministic algorithms would fill it, and a default device have it elsewhere."""
    return torch.UntypedStorage(_BLOCK, device="cpu")
