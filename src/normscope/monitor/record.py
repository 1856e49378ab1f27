"""What one look found."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from normscope.monitor.probes.activations import Activations
from normscope.results import plain
from normscope.stability.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd


class Result(Protocol):
    """What a measurement gives: a frozen dataclass of plain numbers."""

    def summary(self) -> dict[str, float]: ...

    def by_layer(self) -> dict[str, dict[str, float]]: ...

    def verdicts(self, kind: str) -> list[Verdict]: ...


@dataclass(frozen=True)
class Record:
    """One look: the step, what each measurement found, what it means, and what went wrong.

    seconds: what the look cost. notes: conventions that were used, such as a fixed dropout mask. errors: by the name
    of the measurement that failed.
    """

    step: int
    seconds: float
    loss: float
    results: dict[str, Any]
    verdicts: tuple[Verdict, ...] = ()
    notes: tuple[str, ...] = ()
    errors: dict[str, str] = field(default_factory=dict)

    def summary(self) -> dict[str, float]:
        """One number a column, for a table with one row a look."""
        found: dict[str, float] = {"step": self.step, "seconds": self.seconds, "loss": self.loss}
        for result in self.results.values():
            found |= result.summary()
        return found

    def by_layer(self) -> dict[str, dict[str, float]]:
        """Layers and their numbers, of all measurements together."""
        found: dict[str, dict[str, float]] = {}
        for result in self.results.values():
            for layer, row in result.by_layer().items():
                found.setdefault(layer, {}).update(row)
        return found

    def histograms(self) -> Iterator[tuple[str, tuple[float, float], tuple[int, ...]]]:
        seen = self.results.get("activations")
        if isinstance(seen, Activations):
            yield from zip(seen.layers, seen.edges, seen.counts, strict=True)

    def plain(self) -> dict[str, Any]:
        """For JSON: every number of every result."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def frame_of(records: Iterable[Record]) -> "pd.DataFrame":
    """One row a look: step, seconds, loss, and the summary of every measurement."""
    import pandas as pd

    return pd.DataFrame([record.summary() for record in records])


def layers_of(records: Iterable[Record]) -> "pd.DataFrame":
    """One row a look and layer, with the layer's numbers of every measurement."""
    import pandas as pd

    rows = [
        {"step": record.step, "layer": layer} | row for record in records for layer, row in record.by_layer().items()
    ]
    return pd.DataFrame(rows, columns=None if rows else ["step", "layer"])


def latest_verdicts(records: Iterable[Record]) -> tuple[Verdict, ...]:
    """The latest of each measurement."""
    latest: dict[str, Verdict] = {}
    for record in records:
        latest |= {verdict.about: verdict for verdict in record.verdicts}
    return tuple(latest.values())
