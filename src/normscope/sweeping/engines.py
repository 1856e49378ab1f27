"""Where groups of cells train. An engine takes groups and gives their outcomes, in any order, as they are done.

`began` is called with a group's cells just before they train, `advance` with trainings done since. One process, the
one that calls `run`, writes the journal.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from normscope.sweeping.outcome import Outcome
from normscope.sweeping.plan import Cell, Plan
from normscope.sweeping.trainer import Advance, Trainer

Began = Callable[[Sequence[Cell]], None]


class Engine(Protocol):
    """What a sweep asks of an engine."""

    def group_size(self, cells: int) -> int: ...

    def run(
        self, groups: Sequence[Sequence[Cell]], size: int, began: Began, advance: Advance
    ) -> Iterator[list[Outcome]]: ...

    def close(self) -> None: ...


class Local:
    """Groups one after another on one device of this machine."""

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
        """Nothing to give back."""
