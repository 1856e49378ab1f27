"""A tuning: the learning rate it names, the course of every rehearsal, and the cost."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from normscope.messages import duration
from normscope.report.chart import BLUE, DASHED, GREY, VERMILION, Axis, Chart, Line, Panel, spans_decades
from normscope.report.document import Said, Section, Table
from normscope.tuning.evidence import last_loss

_COURSE = (
    "Training loss of each rehearsal, on the same batches at every learning rate. The frame ends at ten times the "
    "first loss. A rehearsal that diverged is dashed."
)
_COLUMNS = (
    "learning rate",
    "steps",
    "first loss",
    "mean loss of the last third",
    "diverged at step",
    "held-out loss",
    "gradient passes",
)
_COLOURS = 6


def tuning_section(title: str, stored: Mapping[str, Any]) -> Section:
    """The section of `Tuning.plain()`."""
    low, high = stored["lr_range"]
    named = f"Train with a learning rate of {stored['lr']:.2g} ({low:.2g} to {high:.2g} cannot be told apart from it) "
    named += f"for {stored['optimizer']}, {stored['steps']} steps, schedule {stored['schedule']}."
    cost = stored["cost"]
    said = (
        Said(None, named, "", stored["reason"]),
        Said(None, _cost(cost), "", "gradient passes of a whole step; a forward pass counts as a third"),
    )
    rehearsals = stored["rehearsals"]
    return Section(
        title,
        said,
        (_course(rehearsals),) if rehearsals else (),
        (Table("Rehearsals", _COLUMNS, [_row(each) for each in rehearsals]),) if rehearsals else (),
        tuple(stored["notes"]),
        stored["settings"],
        stored["environment"],
        uses=("tune",),
    )


def _cost(cost: Mapping[str, Any]) -> str:
    passes, seconds = cost["passes_predicted"], cost["seconds_predicted"]
    return (
        f"The search took {cost['passes_used']:.0f} gradient passes, {cost['share']:.1%} of the training, and "
        f"{duration(cost['seconds_used'])}; predicted were {passes[0]:.0f} to {passes[1]:.0f} passes and "
        f"{duration(seconds[0])} to {duration(seconds[1])}."
    )


def _course(rehearsals: Sequence[Mapping[str, Any]]) -> Chart:
    lines = tuple(
        Line(
            f"{each['lr']:.2g}",
            range(len(each["losses"])),
            each["losses"],
            GREY if number >= _COLOURS else (BLUE, VERMILION, *range(2, _COLOURS))[number],
            DASHED if each["diverged_at"] is not None else "",
        )
        for number, each in enumerate(rehearsals)
    )
    first = next((line.y[0] for line in lines if line.y), math.nan)
    high = 10 * first if first > 0 and any(not value <= 10 * first for line in lines for value in line.y) else None
    log = spans_decades(*(line.y for line in lines))
    panel = Panel("", Axis("step"), Axis("loss", log=log, high=high), lines)
    return Chart("Rehearsals", _COURSE, (panel,), wide=True)


def _row(each: Mapping[str, Any]) -> list[Any]:
    losses, held_out = each["losses"], each["held_out"]
    first = losses[0] if losses else None
    last = last_loss(losses) if losses and each["diverged_at"] is None else None
    mean = sum(held_out) / len(held_out) if held_out else None
    return [each["lr"], each["steps"], first, last, each["diverged_at"], mean, each["passes"]]
