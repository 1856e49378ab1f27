"""How far a sweep is: one bar, or one plain line a group for logs."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """Cells done, trainings per second, time left; quiet, a line whenever a group is done."""

    def __init__(self, total: int, done: int, *, quiet: bool) -> None:
        self._total, self._before, self._trained, self._landed = total, done, 0.0, done
        self._started = time.monotonic()
        self._quiet = quiet
        columns = (TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
        self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=quiet)
        self._task = self._bar.add_task("cells", total=total, completed=done, rate="")

    def more(self, cells: int) -> None:
        """So many cells have come to the total."""
        self._total += cells
        self._bar.update(self._task, total=self._total)

    def advance(self, trained: float) -> None:
        """So many trainings, parts of them counted, were made."""
        self._trained += trained
        done = min(self._before + self._trained, self._total)
        self._bar.update(self._task, completed=round(done), rate=f"{self._rate():.2g} trainings/s")

    def landed(self, cells: int) -> None:
        """So many cells are in the journal."""
        self._landed += cells
        if self._quiet:
            left = (self._total - self._landed) / max(self._rate(), 1e-9)
            said = f"{self._landed}/{self._total} cells, {self._rate():.3g} trainings/s, {left:.0f} s left"
            print(said, file=sys.stderr, flush=True)

    def _rate(self) -> float:
        return self._trained / max(time.monotonic() - self._started, 1e-9)

    def __enter__(self) -> "Bar":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
