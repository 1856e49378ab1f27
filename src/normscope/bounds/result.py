"""The result of `check`: a row for each statement, form and unit."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.results import plain, write_json
from normscope.results.reporting import Reportable

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
# Relative error up to which an equality holds: both sides are sums over a batch in float64.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class StatementRow:
    """One statement on one unit.

    Attributes:
        statement: the theorem or equation of the source.
        form: "printed", "corrected", or "both" where these agree.
        unit: the output of the linear layer; -1 for a statement about the whole layer.
        relation: "=" or "<=" between left and right.
        left: the left side, in the unit of the statement.
        right: the right side, in the same unit.
        slack: right - left.
        error: |slack| over the largest number that went into the two sides; no unit.
        holds: whether the relation holds, within the tolerance.
        applies: False where the statement's own condition is not met, so that nothing follows.
        note: further conditions, in words.
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
) -> StatementRow:
    """A row with its verdict. scale: size of the terms behind the sides. error: given where the sides are norms."""
    left, right = float(left), float(right)
    slack = right - left
    size = max(abs(left), abs(right), abs(scale))
    off = (abs(slack) / size if size else 0.0) if error is None else error
    holds = bool(off <= TOLERANCE) or (relation == "<=" and slack >= 0)
    return StatementRow(statement, form, unit, relation, left, right, slack, off, holds, applies, note)


@dataclass(frozen=True)
class Bounds(Reportable):
    """All rows of one layer.

    Attributes:
        rows: one row for each statement, form and unit.
        m: the number of values of a unit over the batch (samples, times pixels for a convolution).
        lam: the bound on the norm of the inputs in Theorems 4.4 and C.1.
        units: numbers of the units that were checked.
        notes: how eps, constant units and large batches were treated.
        environment: hardware and versions.
    """

    rows: tuple[StatementRow, ...]
    m: int
    lam: float
    units: tuple[int, ...]
    notes: tuple[str, ...]
    environment: dict[str, str | int]

    @property
    def holds(self) -> bool:
        """Whether all correct statements hold; False is a defect of this package or of the arithmetic."""
        return all(row.holds or not row.applies for row in self.rows if row.form != "printed")

    def frame(self) -> "pd.DataFrame":
        """One row for each statement, form and unit."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows], columns=[field.name for field in fields(StatementRow)])

    def summary(self) -> "pd.DataFrame":
        """One row for each statement and form: units where it applies and where it holds, worst error and slack."""
        import pandas as pd

        return pd.DataFrame(self._summary())

    def _summary(self) -> list[dict[str, Any]]:
        kept: dict[tuple[str, str, str], list[StatementRow]] = {}
        for each in self.rows:
            kept.setdefault((each.statement, each.form, each.relation), []).append(each)
        return [
            {
                "statement": statement,
                "form": form,
                "relation": relation,
                "units": len(rows),
                "applies": sum(each.applies for each in rows),
                "holds": sum(each.holds and each.applies for each in rows),
                "error": max((each.error for each in rows if each.applies), default=math.nan),
                "slack": min((each.slack for each in rows if each.applies), default=math.nan),
            }
            for (statement, form, relation), rows in kept.items()
        ]

    def plain(self) -> dict[str, Any]:
        """The result as plain values for JSON."""
        return {"kind": "bounds", "schema": SCHEMA, "holds": self.holds} | plain(asdict(self))

    def save(self, path: str | Path) -> None:
        """Write plain JSON; inf and nan become strings."""
        write_json(path, self.plain())

    def _sections(self) -> Sequence[Any]:
        from normscope.report.sections.bounds import bounds_section

        return [bounds_section("Theorems on a layer", self.plain())]

    def __str__(self) -> str:
        lines = [f"{len(self.units)} units, {self.m} values each, |X| <= {self.lam:.4g}"]
        for line in self._summary():
            failed, silent = line["applies"] - line["holds"], line["units"] - line["applies"]
            verdict = f"FAILS on {failed} of {line['applies']}" if failed else "holds"
            verdict += f", says nothing on {silent}" if silent else ""
            sides = f"error {line['error']:.1e}" if line["relation"] == "=" else f"slack {line['slack']:+.3g}"
            if not line["applies"]:
                verdict, sides = "says nothing: its condition is not met", "-"
            lines.append(f"{line['statement']:<32} {line['form']:<9} {line['relation']:<2} {sides:<16} {verdict}")
        return "\n".join(lines + [f"- {note}" for note in self.notes])
