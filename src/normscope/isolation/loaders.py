"""Read a few batches of a loader without changing what training will get from it.

The random generators of the loader, of its samplers and of the process are put back. A DataLoader with worker processes
is read in this process, so that workers start only once, when training begins. A one-shot iterable (a generator) cannot
be put back; a `Stream` around it stores the batches that were read, and training still gets them.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from normscope.isolation.generators import Generators


class Stream:
    """A one-shot or streaming iterable whose first batches can be read in advance; iterating still gives all batches.

    At its end, a source that can be iterated again starts again.

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
        """The next `count` batches, which iterating will give again; fewer if the stream ends before."""
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
    """At most `count` batches, and a note on batches that reading used up (empty if none).

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
        return list(islice(batches, count)), "They are used up: the iterable can be iterated only once."
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
    """The attributes of a loader, its samplers and its dataset; random generators are among them."""
    holders = [batches, *(getattr(batches, name, None) for name in ("sampler", "batch_sampler", "dataset"))]
    holders += [getattr(holders[2], "sampler", None)]
    # Subsets and concatenations hold the data sets that draw.
    wrapped = [holders[3]]
    for dataset in wrapped:
        inner = [getattr(dataset, "dataset", None), *(getattr(dataset, "datasets", None) or ())]
        wrapped += [each for each in inner if isinstance(each, Dataset)]
    holders += wrapped
    values = [value for holder in holders for value in getattr(holder, "__dict__", {}).values()]
    return list({id(value): value for value in values}.values())


def _without_workers(loader: "DataLoader[Any]") -> "DataLoader[Any]":
    """A loader that reads in this process, and shares dataset and samplers with `loader`."""
    if not loader.num_workers:
        return loader
    same_loader = object.__new__(type(loader))
    settings = {"num_workers": 0, "timeout": 0, "prefetch_factor": None, "persistent_workers": False, "_iterator": None}
    vars(same_loader).update(vars(loader) | settings)
    return same_loader


def _streamed(batches: Iterable[Any]) -> str:
    dataset = getattr(batches, "dataset", None)
    if isinstance(dataset, IterableDataset):
        return "If its dataset cannot be iterated again, they are used up."
    return ""


def to_device(batch: Any, device: torch.device) -> Any:
    """`batch` with all tensors on `device`; other objects with a `.to` method (batches of graphs) are moved by it."""
    from torch.utils._pytree import tree_map

    def moved(part: Any) -> Any:
        return part.to(device) if isinstance(part, torch.Tensor) or hasattr(part, "to") else part

    return tree_map(moved, batch)
