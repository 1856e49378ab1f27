"""Statements of the sources: expectation, result and verdict, one in each row, and their figures."""

from collections.abc import Iterable, Sequence

from normscope.papers import entry as claims
from normscope.papers.entry import Entry, JudgedStatement, fitting_curves, stored
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
    Heat,
    Line,
    Panel,
    borders,
    shared_columns,
)
from normscope.report.document import Said, Section, Table

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


def claims_section(title: str, judged: Sequence[JudgedStatement], store: Store, *, command: str = "") -> Section:
    """The section of some statements; statements that were not reproduced are verdicts, all are rows of the table."""
    said = tuple(
        Said(
            _GOOD[claim.verdict],
            f"{claim.name}: {claim.verdict}. {claim.statement.words}",
            claim.statement.rule.rstrip("."),
            claim.entry.source,
        )
        for claim in judged
        if claim.verdict not in (claims.OPEN, claims.REPRODUCED)
    )
    rows = [
        (
            claim.name,
            claim.entry.title,
            claim.statement.words,
            claim.came_out,
            claim.in_words,
            claim.n,
            claim.scale,
        )
        for claim in judged
    ]
    charts = claim_charts(dict.fromkeys(claim.entry for claim in judged), store)
    return Section(
        title,
        (Said(False, f"{summary(judged)}."), *said),
        tuple(charts.values()),
        (Table("Claim by claim", _COLUMNS, rows),),
        ("Rules were written before the runs that they judge; verdicts are computed from stored curves.",),
        {"results": str(store.folder)},
        {},
        command,
        ("reproduce",),
    )


def claim_charts(entries: Iterable[Entry], store: Store) -> dict[str, Chart]:
    """One chart by the name of each entry that has the curves its figure needs."""
    charts = {entry.name: _chart(entry, store) for entry in entries}
    return {name: chart for name, chart in charts.items() if chart is not None}


def _chart(entry: Entry, store: Store) -> Chart | None:
    """The entry's figure, at the paper's scale where curves of that scale are stored."""
    for scale in ("paper", "small"):
        with fitting_curves(entry):
            panels = entry.panels(stored(entry, store, scale))
        if panels:
            caption = f"{entry.source}. Bands are the smallest and the largest of the seeds, lines their median."
            return Chart(f"{entry.title} ({scale} scale)", caption, tuple(map(_panel, panels)), same_y=False)
    return None


def _panel(panel: claims.Picture) -> Panel:
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
    heat = None if panel.heat is None else _heat(panel.heat)
    return Panel(panel.title, across, along, tuple(lines), tuple(bands), heat)


def _heat(heat: claims.HeatMap) -> Heat:
    """The cells on columns that all rows share."""
    columns, covering = shared_columns(heat.x)
    values = [
        [None if place is None else own[place] for place in places]
        for own, places in zip(heat.z, covering, strict=True)
    ]
    return Heat(heat.label, columns, heat.y, borders(columns), borders(heat.y), values, "log", "a run diverged")


def summary(judged: Sequence[JudgedStatement]) -> str:
    """One sentence: the number of statements with each verdict."""
    verdicts = [claims.TOO_FEW if claim.verdict == claims.OPEN and claim.n else claim.verdict for claim in judged]
    counts = {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}
    said = f"{len(judged)} statements: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    small = sum(reduced(claim) for claim in judged)
    return f"{said}; {small} of these verdicts are at small scale" if small else said


def reduced(claim: JudgedStatement) -> bool:
    """Whether the verdict was computed from runs at small scale."""
    return bool(claim.parts) and claim.scale == "small"
