"""Sections: the content of a page as plain values. A section holds verdicts, charts, tables and settings."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from normscope.report.chart import Chart
from normscope.results import plain


@dataclass(frozen=True)
class Said:
    """One sentence of the list of verdicts.

    Args:
        good: True, False, or None where the number alone does not decide.
        formula, source: the reason for the verdict, shown below the sentence.
    """

    good: bool | None
    text: str
    formula: str = ""
    source: str = ""


@dataclass(frozen=True)
class Table:
    """A table; its cells are text or numbers, and numbers sort as numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Section:
    """One result, or several of one kind side by side.

    Args:
        notes: conventions that were used, and gaps.
        command: the command that made the result, as typed; empty where the file does not hold it.
        uses: the verbs behind the result, for `normscope cite`.
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
        """The first sentence where it is the answer, then the verdicts that are not good, then the rest."""
        answer = [said for said in self.verdicts[:1] if said.good is None]
        rest = self.verdicts[len(answer) :]
        return [*answer, *sorted(rest, key=lambda said: said.good is not False)]

    def verdict_plain(self) -> dict[str, Any]:
        """The verdicts as JSON values, without the evidence."""
        values: dict[str, Any] = plain(
            {"title": self.title, "verdicts": [asdict(said) for said in self.verdicts], "notes": self.notes}
        )
        return values
