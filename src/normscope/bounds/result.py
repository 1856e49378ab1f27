"""What `check` found: a row for each statement, form and unit."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.reporting import Reportable
from normscope.results import plain, write_json

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
# Both sides come out of sums over a batch in float64; an equality that is off by more is none.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Row:
    """One statement on one unit.

    statement: theorem or equation of the source. form: "printed", "corrected", or "both" where the print is right.
    unit: output of the linear layer; -1 for a statement about the whole layer.
    relation: "=" or "<=" between left and right. slack: right - left.
    error: |slack| over the largest number that went into the two sides. holds: the relation, within the tolerance.
    applies: False where the statement's own condition is not met, so that it says nothing. note: what else was tested.
    """

    statement: str
    form: str
    unit: int
    relation: str
    left: float
    right: float
    slack: float
    error: float
    holds: bool
    applies: bool = True
    note: str = ""


def row(
    statement: str,
    form: str,
    unit: int,
    relation: str,
    left: float,
    right: float,
    *,
    scale: float = 0.0,
    error: float | None = None,
    applies: bool = True,
    note: str = "",
) -> Row:
    """A row with its verdict. scale: of the terms behind the sides. error: of vectors, whose norms are the sides."""
    left, right = float(left), float(right)
    slack = right - left
    size = max(abs(left), abs(right), abs(scale))
    off = (abs(slack) / size if size else 0.0) if error is None else error
    holds = bool(off <= TOLERANCE) or (relation == "<=" and slack >= 0)
    return Row(statement, form, unit, relation, left, right, slack, off, holds, applies, note)


@dataclass(frozen=True)
class Bounds(Reportable):
    """All rows of one layer.

    m: values of a unit over the batch. lam: bound on the norm of the inputs in Theorems 4.4 and C.1.
    units: those that were looked at. notes: what was done about eps, constant units, large batches.
    environment: where the numbers were made.
    """

    rows: tuple[Row, ...]
    m: int
    lam: float
    units: tuple[int, ...]
    notes: tuple[str, ...]
    environment: dict[str, str | int]

    @property
    def holds(self) -> bool:
        """Whether all holds that should: a False here is a defect of this package or of the arithmetic."""
        return all(row.holds or not row.applies for row in self.rows if row.form != "printed")

    def frame(self) -> "pd.DataFrame":
        """One row a statement, form and unit."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows], columns=[field.name for field in fields(Row)])

    def summary(self) -> "pd.DataFrame":
        """One row a statement and form: units to which it applies, on which it holds, the worst error and slack."""
        import pandas as pd

        return pd.DataFrame(self._summary())

    def _summary(self) -> list[dict[str, Any]]:
        kept: dict[tuple[str, str, str], list[Row]] = {}
        for found in self.rows:
            kept.setdefault((found.statement, found.form, found.relation), []).append(found)
        return [
            {
                "statement": statement,
                "form": form,
                "relation": relation,
                "units": len(rows),
                "applies": sum(found.applies for found in rows),
                "holds": sum(found.holds and found.applies for found in rows),
                "error": max((found.error for found in rows if found.applies), default=math.nan),
                "slack": min((found.slack for found in rows if found.applies), default=math.nan),
            }
            for (statement, form, relation), rows in kept.items()
        ]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"kind": "bounds", "schema": SCHEMA, "holds": self.holds} | plain(asdict(self))

    def save(self, path: str | Path) -> None:
        """As plain JSON; numbers that JSON has no word for (inf, nan) as strings."""
        write_json(path, self.plain())

    def _sections(self) -> Sequence[Any]:
        from normscope.report.sections.bounds import bounds_section

        return [bounds_section("Theorems on a layer", self.plain())]

    def __str__(self) -> str:
        lines = [f"{len(self.units)} units, {self.m} values each, |X| <= {self.lam:.4g}"]
        for found in self._summary():
            failed, silent = found["applies"] - found["holds"], found["units"] - found["applies"]
            verdict = f"FAILS on {failed} of {found['applies']}" if failed else "holds"
            verdict += f", says nothing on {silent}" if silent else ""
            sides = f"error {found['error']:.1e}" if found["relation"] == "=" else f"slack {found['slack']:+.3g}"
            if not found["applies"]:
                verdict, sides = "says nothing: its condition is not met", "-"
            lines.append(f"{found['statement']:<32} {found['form']:<9} {found['relation']:<2} {sides:<16} {verdict}")
        return "\n".join(lines + [f"- {note}" for note in self.notes])
