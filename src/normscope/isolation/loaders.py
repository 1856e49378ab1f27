"""A few batches of a loader, read without moving it: its samplers' and the process's generators are put back.

A DataLoader with worker processes is read in this process, so that workers start once, when training begins. A one-shot
iterable cannot be put back; a `Stream` around it keeps what was looked at, and training still gets it.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from normscope.isolation.generators import Generators


class Stream:
    """A one-shot or streaming iterable whose first batches can be read ahead: iterating gives them, then the others.

    A source that can be iterated anew is, once it has come to its end.

    Example:
        >>> stream = Stream(iter([1, 2, 3]))
        >>> stream.head(2), list(stream)
        ([1, 2], [1, 2, 3])
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self.source = source
        self._rest: Iterator[Any] | None = None
        self._kept: deque[Any] = deque()

    def head(self, count: int) -> list[Any]:
        """The next `count` batches, which still come when the stream is iterated; fewer where it ends."""
        if self._rest is None:
            self._rest = iter(self.source)
        self._kept.extend(islice(self._rest, max(0, count - len(self._kept))))
        return list(islice(self._kept, count))

    def __iter__(self) -> Iterator[Any]:
        if self._rest is None:
            self._rest = iter(self.source)
        while self._kept:
            yield self._kept.popleft()
        yield from self._rest
        self._rest = None


def is_one_shot(batches: Iterable[Any]) -> bool:
    """Whether iterating may use `batches` up: a generator, or a loader of a stream."""
    return isinstance(batches, Iterator) or isinstance(getattr(batches, "dataset", None), IterableDataset)


def first_batches(batches: Iterable[Any], count: int) -> tuple[list[Any], str]:
    """At most `count` batches, and a note on what reading them used up (empty where nothing was).

    Example:
        >>> first_batches([1, 2, 3], 2)
        ([1, 2], '')
    """
    if isinstance(batches, Stream):
        generators = Generators(_owned(batches.source))
        generators.save()
        try:
            return batches.head(count), ""
        finally:
            generators.restore()
    if isinstance(batches, Iterator):
        found = list(islice(batches, count))
        return found, "They are gone from it: it can be iterated once."
    if isinstance(batches, (list, tuple)):
        return list(batches[:count]), ""
    generators = Generators(_owned(batches))
    generators.save()
    try:
        source = _without_workers(batches) if isinstance(batches, DataLoader) else batches
        return list(islice(source, count)), _streamed(batches)
    finally:
        generators.restore()


def _owned(batches: Iterable[Any]) -> list[object]:
    """What a loader, its samplers and its dataset hold, random generators among it."""
    holders = [batches, *(getattr(batches, name, None) for name in ("sampler", "batch_sampler", "dataset"))]
    holders += [getattr(holders[2], "sampler", None)]
    found = [value for holder in holders for value in getattr(holder, "__dict__", {}).values()]
    return list({id(value): value for value in found}.values())


def _without_workers(loader: "DataLoader[Any]") -> "DataLoader[Any]":
    """The same loader reading in this process, sharing dataset and samplers."""
    if not loader.num_workers:
        return loader
    alone = object.__new__(type(loader))
    own = {"num_workers": 0, "timeout": 0, "prefetch_factor": None, "persistent_workers": False, "_iterator": None}
    vars(alone).update(vars(loader) | own)
    return alone


def _streamed(batches: Iterable[Any]) -> str:
    dataset = getattr(batches, "dataset", None)
    if isinstance(dataset, IterableDataset):
        return "If its dataset cannot be iterated anew, they are gone from it."
    return ""


def to_device(batch: Any, device: torch.device) -> Any:
    """`batch` with its tensors on `device`; objects with a `.to` of their own (batches of graphs) by that."""
    from torch.utils._pytree import tree_map

    def moved(part: Any) -> Any:
        return part.to(device) if isinstance(part, torch.Tensor) or hasattr(part, "to") else part

    return tree_map(moved, batch)
