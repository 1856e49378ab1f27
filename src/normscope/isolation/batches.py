"""Read the `batches` argument of a verb: one batch, or an iterable of which a few batches are read."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from normscope.isolation.loaders import Stream, first_batches, to_device
from normscope.objective import PLAIN, described

MOST_BATCHES = 1000
# Number of batches read from a loader if n_batches= is not given: enough for a range of results, at a low cost.
FEW = 4


class Batches(list[Any]):
    """A list that is known to be of batches, be each of them a bare tensor."""


@dataclass(frozen=True)
class Read:
    """The batches that were read.

    note: a sentence on how many were read and whether reading used them up. one: whether a single batch was handed in.
    """

    batches: list[Any]
    note: str
    one: bool


def read_batches(batches: Any, *, device: torch.device, micro_batch: int | None, most: int | None) -> Read:
    """The one batch handed in, or the first batches of an iterable, moved to `device`.

    Args:
        batches: one batch, or an iterable of batches.
        device: the model's device.
        micro_batch: samples of each part into which one batch (x, y) is cut.
        most: largest number of batches to read; by default all of a list, and `FEW` of another iterable.

    Raises:
        ValueError: no batch, a batch without tensors or without samples, or options that do not fit.
    """
    note = ""
    if is_one_batch(batches):
        batches_read = [batches] if micro_batch is None else _parts(batches, micro_batch)
    elif micro_batch is not None:
        raise ValueError("micro_batch= cuts one batch; a loader has its batches already.")
    else:
        batches_read, note = _from_iterable(batches, most)
        batches_read = [to_device(batch, device) for batch in batches_read]
    for batch in batches_read:
        _check(batch)
    return Read(batches_read, note, one=is_one_batch(batches))


def _from_iterable(batches: Any, most: int | None) -> tuple[list[Any], str]:
    if not isinstance(batches, Iterable) or isinstance(batches, (str, bytes)):
        raise ValueError(f"Batches are an iterable of (x, y), mappings or others; got {type(batches).__name__}.")
    if isinstance(batches, Tensor):
        raise ValueError(
            "Hand in a pair (x, y) or an iterable of such pairs; got one tensor. For a batch without y: [x]."
        )
    if most is not None and most < 1:
        raise ValueError(f"n_batches= counts the batches to read, at least 1; got {most}.")
    default_count = None if isinstance(batches, (list, tuple)) else FEW
    batches_read, note = first_batches(batches, most or default_count or MOST_BATCHES + 1)
    if len(batches_read) > MOST_BATCHES and most is None:
        raise ValueError(
            f"There are more than {MOST_BATCHES} batches, and all would be kept in memory. Hand in fewer: batches[:50]."
        )
    if default_count is not None:
        source = batches.source if isinstance(batches, Stream) else batches
        one_shot = source is not batches and isinstance(source, Iterator)
        name = "stream" if one_shot else type(source).__name__
        count = f"{len(batches_read)} batches of the {name} were read; n_batches= sets another number."
        note = f"{count} {note}".rstrip()
    if not batches_read:
        raise ValueError("The iterable gives no batch. Check the loader: is the dataset empty, or drop_last=True?")
    return batches_read, note


def _check(batch: Any) -> None:
    leaves = tree_leaves(batch)
    if any(isinstance(leaf, np.ndarray) for leaf in leaves):
        raise ValueError("A batch holds tensors; got NumPy arrays. Convert them: torch.from_numpy(x).")
    if all(isinstance(leaf, PLAIN) for leaf in leaves):
        raise ValueError(f"A batch holds tensors, as a pair (x, y) or a mapping; got {described(batch)}.")
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    if any(isinstance(leaf, Tensor) and leaf.ndim and not len(leaf) for leaf in tree_leaves(first)):
        raise ValueError("The batch is empty: it holds no sample. Hand in at least one sample.")


def is_one_batch(batches: Any) -> bool:
    """Whether `batches` is one batch, not an iterable of batches.

    A batch is a mapping, an object with a `.to` method, or a tuple or list with tensors. A tuple of two is one batch
    (x, y), whatever x and y are.

    Raises:
        ValueError: a tuple of two pairs, which can be read both ways.

    Example:
        >>> is_one_batch((torch.ones(2), torch.ones(2))), is_one_batch([(torch.ones(2), torch.ones(2))])
        (True, False)
    """
    if isinstance(batches, Mapping) or (hasattr(batches, "to") and not isinstance(batches, Tensor)):
        return True
    if not isinstance(batches, (tuple, list)) or isinstance(batches, Batches):
        return False
    if isinstance(batches, tuple) and len(batches) == 2:
        if all(isinstance(part, (tuple, list)) and len(part) == 2 for part in batches):
            raise ValueError(
                "A tuple of two pairs may be one batch or two. Hand in a list: [first, second] for two, [batch] for "
                "one."
            )
        return True
    return len(batches) > 1 and any(isinstance(part, Tensor) for part in batches)


def samples(batch: Any) -> int:
    """The number of samples: the length of the first tensor in the batch."""
    return next((len(t) for t in tree_leaves(batch) if isinstance(t, Tensor) and t.ndim), 0)


def _parts(batch: Any, size: int) -> list[tuple[Any, Any]]:
    pair = isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)
    if size < 1 or not pair:
        raise ValueError(f"micro_batch= cuts tensors x and y into parts of at least one sample; got {size}.")
    x, y = batch
    return list(zip(x.split(size), y.split(size), strict=True))
