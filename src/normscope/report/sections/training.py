"""A run of `train`: the loss of every step, and the evaluations on the way."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from normscope.report.chart import BLUE, Axis, Chart, Line, Panel, spans_decades
from normscope.report.document import Said, Section, Table

_LOSS = (
    "Loss of each training batch before its step. The frame ends at ten times the first, where the loss goes beyond."
)
_EVALUATED = "What was evaluated on the way, at the steps where it was."


def training_section(title: str, stored: Mapping[str, Any]) -> Section:
    """The section of a file that `Training.save` wrote."""
    losses = [float(loss) for loss in stored["losses"]]
    evaluations = stored["evaluations"]
    names = list(dict.fromkeys(name for row in evaluations for name in row if name != "step"))
    charts = [_chart("Loss over training", _LOSS, {"loss": (range(len(losses)), losses)}, losses[:1])]
    for name in names:
        kept = [row for row in evaluations if name in row]
        series = {name: ([row["step"] for row in kept], [float(row[name]) for row in kept])}
        charts.append(_chart(f"Evaluated: {name}", _EVALUATED, series, ()))
    rows = [[row.get(name) for name in ("step", *names)] for row in evaluations]
    return Section(
        title,
        (_said(losses, stored["diverged_at"]),),
        tuple(charts) if losses else (),
        (Table("Evaluations", ("step", *names), rows),) if rows else (),
        (),
        stored["settings"] | {"seconds": stored["seconds"]},
        stored["environment"],
    )


def _said(losses: Sequence[float], diverged_at: int | None) -> Said:
    if not losses:
        return Said(False, "No step was made: there were no batches.")
    if diverged_at is not None:
        text = f"Training diverged at step {diverged_at}: the loss went from {losses[0]:.3g} to {losses[-1]:.3g}."
        return Said(False, f"{text} A smaller learning rate is the first thing to try.", "", "this run")
    text = f"The loss of a batch went from {losses[0]:.3g} to {losses[-1]:.3g} in {len(losses)} steps."
    return Said(losses[-1] < losses[0], text, "", "this run")


def _chart(
    title: str,
    caption: str,
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    start: Sequence[float],
) -> Chart:
    lines = tuple(Line(name, x, y, BLUE, marks=len(x) < 40) for name, (x, y) in series.items())
    # Without a ceiling a diverged run would flatten the curve before it.
    ceiling = 10 * start[0] if start else math.nan
    high = ceiling if any(not value <= ceiling for line in lines for value in line.y) and ceiling > 0 else None
    log = spans_decades(*(line.y for line in lines))
    return Chart(title, caption, (Panel("", Axis("step"), Axis(lines[0].name, log=log, high=high), lines),), wide=True)
