"""The sources' statements, one a row: what was expected, what came out, the verdict; and their figures."""

from collections.abc import Sequence

from normscope.papers import entry as claims
from normscope.papers.entry import Entry, Judged, fitting_curves, stored
from normscope.papers.store import Store
from normscope.report.chart import (
    BLUE,
    DASH_DOT,
    DASHED,
    DOTTED,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    SOLID,
    VERMILION,
    Axis,
    Band,
    Chart,
    Line,
    Panel,
)
from normscope.report.document import Said, Section, Table
from normscope.report.reproduction import summary

_GOOD = {claims.REPRODUCED: True, claims.NOT: False, claims.WRONG: False, claims.IN_PART: None}
_STYLES = (
    (VERMILION, DASHED),
    (BLUE, SOLID),
    (GREEN, DASH_DOT),
    (PURPLE, DOTTED),
    (ORANGE, DASHED),
    (SKY, SOLID),
    (INK, DASH_DOT),
)
_COLUMNS = ("statement", "of", "expected", "came out", "verdict", "n", "scale")


def claims_section(title: str, judged: Sequence[Judged], store: Store, *, command: str = "") -> Section:
    """Statements that did not come out first; those not yet run are in the table alone."""
    said = tuple(
        Said(
            _GOOD[one.verdict],
            f"{one.name}: {one.verdict}. {one.statement.words}",
            one.statement.rule.rstrip("."),
            one.entry.source,
        )
        for one in judged
        if one.verdict not in (claims.OPEN, claims.REPRODUCED)
    )
    rows = [
        (one.name, one.entry.title, one.statement.words, one.came_out, one.verdict, one.n, one.scale) for one in judged
    ]
    entries = list(dict.fromkeys(one.entry for one in judged))
    charts = [chart for entry in entries if (chart := _chart(entry, store)) is not None]
    return Section(
        title,
        (Said(False, f"{summary(judged)}."), *said),
        tuple(charts),
        (Table("Claim by claim", _COLUMNS, rows),),
        ("Rules were written before the runs that they judge; verdicts are computed from stored curves.",),
        {"results": str(store.folder)},
        {},
        command,
        ("reproduce",),
    )


def _chart(entry: Entry, store: Store) -> Chart | None:
    """At the paper's scale if there are curves of it."""
    for scale in ("paper", "small"):
        with fitting_curves(entry):
            panels = entry.panels(stored(entry, store, scale))
        if panels:
            caption = f"{entry.source}. Bands are the smallest and the largest of the seeds, lines their median."
            return Chart(f"{entry.title} ({scale} scale)", caption, tuple(map(_panel, panels)), same_y=False)
    return None


def _panel(panel: claims.Panel) -> Panel:
    lines, bands = [], []
    for number, line in enumerate(panel.lines):
        colour, dash = _STYLES[number % len(_STYLES)]
        marks = line.points or len(line.x) <= 12
        lines.append(Line(line.label, line.x, line.y, colour, dash, marks=marks, joined=not line.points))
        if line.low is not None and line.high is not None:
            bands.append(Band(line.label, line.x, line.low, line.high, colour))
    if panel.level is not None and panel.lines:
        height, name = panel.level
        ends = [f(x for line in panel.lines for x in line.x) for f in (min, max)]
        lines.append(Line(name, ends, [height, height], GREY, DOTTED))
    across, along = Axis(panel.x, log=panel.log_x), Axis(panel.y, log=panel.log_y)
    return Panel(panel.title, across, along, tuple(lines), tuple(bands))
