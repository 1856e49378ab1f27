"""Protocol of a sink: the methods that the Monitor calls."""

from typing import Any, Protocol

from normscope.monitor.record import Record


class Sink(Protocol):
    """An object that stores every record as soon as it is made; used in the first process only."""

    def open(self, settings: dict[str, Any]) -> None:
        """Called once, with `Monitor.settings()`."""

    def write(self, record: Record) -> None:
        """Called after every snapshot."""

    def close(self) -> None:
        """Called at the end of training."""
