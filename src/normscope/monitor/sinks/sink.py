"""Protocol of a sink: the methods that the Monitor calls.

To add a sink, write a class with these three methods in a file of this folder; users hand an object of it to
`Monitor(sinks=[...])`. If it needs a library, add an extra to pyproject.toml, ask for it with `extras.need` in the
constructor, and import it inside `open`. Enter a sink for everybody in `monitor/__init__.py` (three places: the import
for type checkers, `__all__`, `on_first_use`).
"""

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
