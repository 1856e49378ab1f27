"""Results of `bounds` on one layer, or on every layer of a network."""

import math
from collections.abc import Mapping
from typing import Any

from normscope.bounds import Bounds, StatementRow
from normscope.report.chart import BLUE, DASHED, GREEN, VERMILION, Axis, Chart, Line, Panel, spans_decades
from normscope.report.document import Said, Section, Table
from normscope.results.decoding import decode

_COLOURS = {"printed": (VERMILION, DASHED), "corrected": (BLUE, ""), "both": (GREEN, "")}
_CAPTION = (
    "Left over right side, the largest of a layer's units; 1 is an equality, and above 1 an upper bound is broken. "
    "Where a side is not positive or the statement's own condition is not met there is no point."
)


def bounds_section(title: str, stored: Mapping[str, Any]) -> Section:
    """The section of `Bounds.plain()`, or of the output of `normscope bounds --json` for a network."""
    layers: dict[str, Bounds] = decode(dict[str, Bounds], stored.get("layers", {"": stored}))
    wrong = [name for name, result in layers.items() if not result.holds]
    units = sum(len(result.units) for result in layers.values())
    where = f"{units} units of {len(layers)} layer{'s' * (len(layers) != 1)}"
    said = [
        Said(
            not wrong,
            f"Every corrected statement holds on {where}."
            if not wrong
            else f"A corrected statement fails on {', '.join(name or 'this layer' for name in wrong)}: the arithmetic "
            "or this instrument is at fault there.",
            "both sides computed in float64",
            "theorems about one BatchNorm layer",
        )
    ]
    broken = sorted({row.statement for f in layers.values() for row in f.rows if row.form == "printed" and _fails(row)})
    if broken:
        words = f"As printed in the source, these fail here: {'; '.join(broken)}."
        said.append(Said(None, words, "", "docs/evidence/errata"))
    columns = ("layer", "statement", "form", "relation", "units", "applies", "holds", "largest error", "least slack")
    rows = [
        [name, *(_number(value) for value in row.values())]
        for name, result in layers.items()
        for row in result.summary().to_dict("records")
    ]
    notes = tuple(dict.fromkeys(f"{name}: {note}" if name else note for name, f in layers.items() for note in f.notes))
    first = next(iter(layers.values()))
    settings = {"values of a unit": first.m, "bound on the inputs": first.lam}
    charts = tuple(chart for name, result in layers.items() if (chart := _chart(name, result)) is not None)
    table = Table("Statements", columns, rows)
    return Section(title, tuple(said), charts, (table,), notes, settings, first.environment, uses=("bounds",))


def _fails(row: StatementRow) -> bool:
    return row.applies and not row.holds


def _chart(name: str, result: Bounds) -> Chart | None:
    shares: dict[str, dict[str, float]] = {}
    for row in result.rows:
        if row.applies and row.left > 0 and row.right > 0 and math.isfinite(row.left / row.right):
            of_form = shares.setdefault(row.form, {})
            of_form[row.statement] = max(of_form.get(row.statement, 0.0), row.left / row.right)
    statements = list(dict.fromkeys(row.statement for row in result.rows))

    def of_statements(shares_of_form: Mapping[str, float]) -> list[float]:
        return [shares_of_form.get(statement, math.nan) for statement in statements]

    lines = tuple(
        Line(form, range(len(statements)), of_statements(of_form), *_COLOURS[form], marks=True, joined=False)
        for form, of_form in shares.items()
    )
    if not lines:
        return None
    axis = Axis("left / right", log=spans_decades(*(line.y for line in lines)))
    panel = Panel("", Axis("statement", ticks=tuple(statements)), axis, lines)
    return Chart(f"Both sides{f', {name}' if name else ''}", _CAPTION, (panel,), wide=True)


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
