"""The progress of a sweep, as a bar or as one plain line a group."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """A progress bar: cells done, trainings per second, time left; with quiet=True one line a finished group."""

    def __init__(self, total: int, done: int, *, quiet: bool) -> None:
        self._total, self._before, self._trained, self._landed = total, done, 0.0, done
        self._started = time.monotonic()
        self._quiet = quiet
        columns = (TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
        self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=quiet)
        self._task = self._bar.add_task("cells", total=total, completed=done, rate="")

    def more(self, cells: int) -> None:
        """Add cells to the total."""
        self._total += cells
        self._bar.update(self._task, total=self._total)

    def advance(self, trained: float) -> None:
        """Count trainings as done; `trained` may be a fraction of one."""
        self._trained += trained
        done = min(self._before + self._trained, self._total)
        self._bar.update(self._task, completed=round(done), rate=f"{self._rate():.2g} trainings/s")

    def landed(self, cells: int) -> None:
        """Count cells as written to the journal."""
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
