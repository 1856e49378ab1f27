"""Runs measured by a Monitor, side by side: files of a Monitor, or stored landscapes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from normscope.report.chart import (
    BLUE,
    DASHED,
    INK,
    VERMILION,
    Axis,
    Band,
    Chart,
    Line,
    Panel,
    spans_decades,
)
from normscope.report.document import Said, Section, Table
from normscope.report.sections.layers import activation_chart, depth_chart, shift_chart

_AROUND = "smallest to largest along the gradient"
BETA_LIMIT = "saturates at 2/lr: only values above it are spikes"


@dataclass(frozen=True)
class Course:
    """One run over its steps.

    Args:
        columns: one list for each number, one entry for each snapshot; nan where a snapshot lacks the number.
        layers: the columns of each layer.
        histograms: (step, low, high, counts) for each unit and each snapshot that took a histogram.
    """

    label: str
    columns: Mapping[str, Sequence[float]]
    layers: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    histograms: Mapping[str, Sequence[tuple[float, float, float, Sequence[float]]]] = field(default_factory=dict)
    verdicts: tuple[Said, ...] = ()
    notes: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    command: str = ""

    def has(self, column: str) -> bool:
        """Whether any snapshot has a finite number in this column."""
        return any(math.isfinite(v) for v in self.columns.get(column, ()))


def monitor_section(title: str, courses: Sequence[Course]) -> Section:
    """All runs in one section: every chart has one panel for each run, on the same scale."""
    several = len(courses) > 1

    def named(course: Course, said: Said) -> Said:
        return Said(said.good, f"{course.label}: {said.text}", said.formula, said.source) if several else said

    charts = [
        *_landscape_charts(courses),
        *(shift_chart(course.label, course.columns["step"], course.layers) for course in courses),
        *(depth_chart(course.label, course.columns["step"], course.layers) for course in courses),
        *(activation_chart(course.label, course.histograms) for course in courses),
    ]
    first = courses[0]
    return Section(
        title,
        tuple(named(course, said) for course in courses for said in course.verdicts),
        tuple(chart for chart in charts if chart is not None),
        tuple(_range_table(course) for course in courses if course.columns.get("step")),
        tuple(dict.fromkeys(f"{c.label}: {note}" if several else note for c in courses for note in c.notes)),
        first.settings if not several else {c.label: c.settings for c in courses},
        first.environment if _same(courses) else {f"{c.label}, made on": c.environment for c in courses},
        "\n".join(dict.fromkeys(c.command for c in courses if c.command)),
        ("monitor",),
    )


def landscape_chart(label: str, course: Course) -> Chart | None:
    """All panels along the gradient of one run, one below the other, as far as they were measured."""
    charts = [chart for chart in _landscape_charts([course]) if chart is not None]
    panels = tuple(replace(panel, title=chart.title) for chart in charts for panel in chart.panels)
    caption = " ".join(chart.caption for chart in charts)
    return Chart(f"Landscape along the gradient, {label}", caption, panels, same_y=False, wide=True) if panels else None


def _landscape_charts(courses: Sequence[Course]) -> list[Chart | None]:
    return [
        _chart(courses, "Loss along the gradient", "loss_min", _loss, _LOSS_CAPTION),
        _chart(courses, "Change of the gradient", "grad_change_min", _change, _CHANGE_CAPTION),
        _chart(courses, "Effective beta-smoothness", "beta", _beta, _BETA_CAPTION),
        _chart(courses, "Critical step", "critical_step", _critical, _CRITICAL_CAPTION),
    ]


def _same(courses: Sequence[Course]) -> bool:
    return all(course.environment == courses[0].environment for course in courses)


Series = tuple[tuple[Line, ...], tuple[Band, ...]]


def _chart(
    courses: Sequence[Course],
    title: str,
    column: str,
    series: Callable[[Mapping[str, Sequence[float]]], tuple[str, Series]],
    caption: str,
) -> Chart | None:
    seen = [course for course in courses if course.has(column)]
    if not seen:
        return None
    drawn = [(course, *series(_where(course.columns, column))) for course in seen]
    values = [v for _, _, (lines, bands) in drawn for v in _vertical(lines, bands)]
    log = spans_decades(*values)
    panels = tuple(
        Panel(course.label if len(seen) > 1 else "", Axis("step"), Axis(label, log=log), lines, bands)
        for course, label, (lines, bands) in drawn
    )
    return Chart(title, caption, panels)


def _vertical(lines: Sequence[Line], bands: Sequence[Band]) -> list[Sequence[float]]:
    return [line.y for line in lines] + [edge for band in bands for edge in (band.low, band.high)]


def _where(columns: Mapping[str, Sequence[float]], column: str) -> dict[str, list[float]]:
    """The snapshots that have a number in `column`; infinities are kept."""
    rows = [i for i, value in enumerate(columns[column]) if not math.isnan(value)]
    return {name: [values[i] for i in rows] for name, values in columns.items()}


_LOSS_CAPTION = (
    "The loss of the training batch before the step, and the range it takes at points further along the gradient. "
    "A narrow band means that the loss here is close to its first-order model."
)
_CHANGE_CAPTION = (
    "The range of ||g(here) - g(further along)||, beside the norm of the gradient here. Where the change exceeds the "
    "norm, the gradient no longer says where to go."
)
_BETA_CAPTION = (
    "The largest change of the gradient divided by the distance moved. On a loss that decreases the measure cannot "
    "rise much above 2/lr, so only values above that line are spikes."
)
_CRITICAL_CAPTION = (
    "How many times the coming update could be taken before the loss is worse than here. Below one, the step about to "
    "be taken raises the loss of its own batch."
)


def _loss(seen: Mapping[str, Sequence[float]]) -> tuple[str, Series]:
    lines = (Line("loss of the batch", seen["step"], seen["loss"], INK),)
    return "loss", (lines, (Band(_AROUND, seen["step"], seen["loss_min"], seen["loss_max"], BLUE),))


def _change(seen: Mapping[str, Sequence[float]]) -> tuple[str, Series]:
    lines = (Line("norm of the gradient here", seen["step"], seen["grad_norm"], INK),)
    bands = (Band(_AROUND, seen["step"], seen["grad_change_min"], seen["grad_change_max"], BLUE),)
    return "change of the gradient, l2", (lines, bands)


def _beta(seen: Mapping[str, Sequence[float]]) -> tuple[str, Series]:
    lines = [Line("effective beta", seen["step"], seen["beta"], BLUE)]
    if "beta_limit" in seen:
        lines.append(Line(f"2/lr ({BETA_LIMIT})", seen["step"], seen["beta_limit"], VERMILION, DASHED))
    return "beta", (tuple(lines), ())


def _critical(seen: Mapping[str, Sequence[float]]) -> tuple[str, Series]:
    present_update = Line("the coming update", seen["step"], [1.0] * len(seen["step"]), VERMILION, DASHED)
    return "updates", (
        (Line("the loss is no worse up to", seen["step"], seen["critical_step"], BLUE), present_update),
        (),
    )


def _range_table(course: Course) -> Table:
    """The value of every column at the first and last snapshot that has it, and its range."""
    rows = []
    for name, values in course.columns.items():
        known = [value for value in values if not math.isnan(value)]
        if known and name != "step":
            rows.append([name, known[0], known[-1], min(known), max(known), len(known)])
    return Table(f"Numbers of {course.label}", ("quantity", "first", "last", "smallest", "largest", "snapshots"), rows)
