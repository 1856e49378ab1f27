"""Records: the results of all probes at one snapshot, and tables of them."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from normscope.monitor.probes.probe import HasHistograms
from normscope.results import plain
from normscope.stability.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Record:
    """One snapshot: the step, the result of each probe, the verdicts on them, and the errors.

    Attributes:
        step: the number of the training step at which the snapshot was taken.
        seconds: the duration of the snapshot in seconds.
        loss: the loss of the batch before the step.
        results: the results by the name of the probe.
        verdicts: one sentence or more on the results.
        notes: conventions that were used, such as a fixed dropout mask.
        errors: messages by the name of the probe that failed.
    """

    step: int
    seconds: float
    loss: float
    results: dict[str, Any]
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()
    errors: dict[str, str] = field(default_factory=dict)

    def summary(self) -> dict[str, float]:
        """One number for each column of a table that has one row for each snapshot."""
        row: dict[str, float] = {"step": self.step, "seconds": self.seconds, "loss": self.loss}
        for result in self.results.values():
            row |= result.summary()
        return row

    def by_layer(self) -> dict[str, dict[str, float]]:
        """The numbers of each layer, from all probes together."""
        layers: dict[str, dict[str, float]] = {}
        for result in self.results.values():
            for layer, row in result.by_layer().items():
                layers.setdefault(layer, {}).update(row)
        return layers

    def histograms(self) -> Iterator[tuple[str, tuple[float, float], tuple[int, ...]]]:
        """Layer, both ends and counts of each histogram, of all probes that make some."""
        for result in self.results.values():
            if isinstance(result, HasHistograms):
                yield from result.histograms()

    def plain(self) -> dict[str, Any]:
        """The record as JSON values, with every number of every result."""
        stored: dict[str, Any] = plain(asdict(self))
        return stored


class StoredResult(dict[str, Any]):
    """The stored result of a probe that normscope does not have: the user's own, or one of another version.

    Its values are those of the file. Numbers on its first level are columns, named `probe.value`.

    Example:
        >>> StoredResult({"ratio": 2.0, "name": "a"}, probe="own").summary()
        {'own.ratio': 2.0}
    """

    def __init__(self, values: Any = (), *, probe: str = "") -> None:
        super().__init__(values)
        self.probe = probe

    def summary(self) -> dict[str, float]:
        """The numbers on the first level."""
        named = {f"{self.probe}.{name}": value for name, value in self.items()}
        numbers = {name: _number(value) for name, value in named.items()}
        return {name: number for name, number in numbers.items() if number is not None}

    def by_layer(self) -> dict[str, dict[str, float]]:
        """Nothing: the layers of the values are unknown."""
        return {}

    def verdicts(self, loss_kind: str) -> list[Verdict]:
        """Nothing: the verdicts of the run are stored in its records."""
        return []


def _number(value: Any) -> float | None:
    """The value where it is a number, or the word that JSON has for one."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return float(value) if value in ("nan", "inf", "-inf") else None


def frame_of(records: Iterable[Record]) -> "pd.DataFrame":
    """A table with one row for each snapshot: step, seconds, loss, and the summary of every probe.

    Args:
        records: `Monitor.records`, or `records_of` of a file.

    Returns:
        The table; numbers that a record does not have are nan.
    """
    import pandas as pd

    return pd.DataFrame([record.summary() for record in records])


def layers_of(records: Iterable[Record]) -> "pd.DataFrame":
    """A table with one row for each snapshot and layer: the numbers of the layer from every probe.

    Args:
        records: `Monitor.records`, or `records_of` of a file.

    Returns:
        The table, with columns step and layer first.
    """
    import pandas as pd

    rows = [
        {"step": record.step, "layer": layer} | row for record in records for layer, row in record.by_layer().items()
    ]
    return pd.DataFrame(rows, columns=None if rows else ["step", "layer"])


def latest_verdicts(records: Iterable[Record]) -> tuple[Verdict, ...]:
    """The latest verdict on each quantity."""
    latest: dict[str, Verdict] = {}
    for record in records:
        latest |= {verdict.about: verdict for verdict in record.verdicts}
    return tuple(latest.values())
