"""Engines train groups of cells and yield the outcomes of each group, in any order, as it finishes.

`began` is called with a group's cells just before they train, `advance` with the number of trainings done since the
last call. The process that calls `run` is the only one that writes the journal.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from normscope.sweeping.outcome import Outcome
from normscope.sweeping.plan import Cell, Plan
from normscope.sweeping.trainer import Advance, Trainer

Began = Callable[[Sequence[Cell]], None]


class Engine(Protocol):
    """The interface of an engine."""

    def group_size(self, cells: int) -> int:
        """The number of cells to train as one group, for so many cells in all."""

    def run(
        self, groups: Sequence[Sequence[Cell]], size: int, began: Began, advance: Advance
    ) -> Iterator[list[Outcome]]:
        """Train the groups; yields the outcomes of each group. A compiled group is filled up to `size`."""

    def close(self) -> None:
        """Release what the engine holds."""


class Local:
    """An engine that trains groups one after another on one device of this machine."""

    def __init__(self, plan: Plan, *, device: str, root: str | os.PathLike[str] | None = None) -> None:
        self._trainer = Trainer(plan, device=device, root=root)

    def group_size(self, cells: int) -> int:
        return self._trainer.group_size(cells)

    def run(
        self, groups: Sequence[Sequence[Cell]], size: int, began: Began, advance: Advance
    ) -> Iterator[list[Outcome]]:
        for cells in groups:
            began(cells)
            yield from self._trainer.train(cells, size=size, advance=advance)

    def close(self) -> None:
        """Do nothing: the engine holds nothing outside this process."""
