"""A page before it is a page: verdicts, evidence, and how it was made."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from normscope.report.chart import Chart
from normscope.results import plain


@dataclass(frozen=True)
class Said:
    """One sentence of the verdict list. good: True, False, or None where the number alone does not decide."""

    good: bool | None
    text: str
    formula: str = ""
    source: str = ""


@dataclass(frozen=True)
class Table:
    """Cells are text or numbers; numbers sort as numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Section:
    """One result, or several of a kind side by side.

    command: what made it, as it would be typed; empty where the file does not say. notes: conventions and gaps.
    uses: the verbs it stands on, for `normscope cite`.
    """

    title: str
    verdicts: tuple[Said, ...]
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    uses: tuple[str, ...] = ()

    def in_order(self) -> list[Said]:
        """The answer, where the first sentence is one; then what needs a look; then the rest, each as it came."""
        answer = [said for said in self.verdicts[:1] if said.good is None]
        rest = self.verdicts[len(answer) :]
        return [*answer, *sorted(rest, key=lambda said: said.good is not False)]

    def verdict_plain(self) -> dict[str, Any]:
        """For machines: the verdicts, without the evidence."""
        found: dict[str, Any] = plain(
            {"title": self.title, "verdicts": [asdict(said) for said in self.verdicts], "notes": self.notes}
        )
        return found
