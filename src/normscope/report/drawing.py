"""Charts as figures for papers: matplotlib draws the same numbers and labels that the page's script draws."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normscope.report.chart import LIGHT, Axis, Band, Chart, Heat, Line, Panel
from normscope.report.document import Section
from normscope.results.saving import save_figure

FORMATS = ("pdf", "png", "svg")
# In the order of the palette: points of different colours have different shapes.
_MARKS = ("o", "s", "^", "D", "v", "P", "X", "o")
_MAPS = {"log": "viridis", "linear": "cividis", "cosine": "PuOr_r"}
_BLANK = "#d9d9d9"
_ROW, _MOST_NAMES, _MOST_KEYS, _MOST_MARKED = 3, 24, 10, 12


def write_figures(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Writes every chart as 01-its-title.pdf, .png and .svg; returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, chart in enumerate((chart for section in sections for chart in section.charts), 1):
        figure = draw(chart)
        name = re.sub(r"[^a-z0-9]+", "-", chart.title.lower()).strip("-")[:60]
        for ending in FORMATS:
            written.append(folder / f"{number:02d}-{name}.{ending}")
            save_figure(figure, written[-1], dpi=200, metadata={"Title": literal(chart.title)})
    return written


def draw(chart: Chart) -> Figure:
    """The chart as a figure: panels in rows of two or three, or one below the other where the chart is wide."""
    count = len(chart.panels)
    columns = 1 if chart.wide else 2 if count == 4 else min(count, _ROW)
    rows = -(-count // columns)
    width = 7.5 if columns == 1 else 4.4 * columns
    heights = [
        max(_height(panel, columns == 1) for panel in chart.panels[row * columns : (row + 1) * columns])
        for row in range(rows)
    ]
    figure = Figure(figsize=(width, sum(heights) + 0.4), layout="constrained")
    places = figure.subplots(
        rows, columns, squeeze=False, sharey=chart.same_y and count > 1, gridspec_kw={"height_ratios": heights}
    )
    axes = list(places.flat)[:count]
    for ax, panel in zip(axes, chart.panels, strict=True):
        _panel(figure, ax, panel)
    for ax in places.flat[count:]:
        ax.set_visible(False)
    figure.suptitle(fill(literal(chart.title), int(11 * width)), fontsize=11)
    _legend(figure, axes, chart.panels)
    return figure


def literal(label: str) -> str:
    """A label escaped for matplotlib, where a dollar sign would start a formula and a surrogate has no glyph.

    Example:
        >>> literal("cost in $")
        'cost in \\\\$'
    """
    return label.encode("utf-8", "backslashreplace").decode().replace("$", r"\$")


def _height(panel: Panel, wide: bool) -> float:
    """Inches; more for a wide heat map, and where the vertical axis has many names."""
    names = len(panel.y.ticks or ())
    return max(5.0 if panel.heat is not None and wide else 3.6, 1.4 + 0.2 * min(names, _MOST_NAMES))


def _panel(figure: Figure, ax: Axes, panel: Panel) -> None:
    if panel.heat is not None:
        _heat(figure, ax, panel.heat)
    for band in panel.bands:
        _band(ax, band)
    for line in panel.lines:
        _line(ax, line)
    ax.set_title(literal(panel.title), fontsize=10)
    _axis(ax, "x", panel.x)
    _axis(ax, "y", panel.y)
    if panel.heat is None:
        ax.grid(alpha=0.3)


def _axis(ax: Axes, which: str, axis: Axis) -> None:
    drawn = ax.xaxis if which == "x" else ax.yaxis
    drawn.set_label_text(literal(axis.label))
    if axis.log:
        getattr(ax, f"set_{which}scale")("log")
    if axis.ticks is not None:
        step = max(1, -(-len(axis.ticks) // (_MOST_NAMES if which == "y" else 8)))
        kept = range(0, len(axis.ticks), step)
        drawn.set_ticks(list(kept), [literal(axis.ticks[i]) for i in kept], fontsize=7)
    limits = {}
    if axis.low is not None:
        limits["left" if which == "x" else "bottom"] = axis.low
    if axis.high is not None:
        limits["right" if which == "x" else "top"] = axis.high
    if limits:
        getattr(ax, f"set_{which}lim")(**limits)


def _line(ax: Axes, line: Line) -> None:
    dash: Any = (0, tuple(map(float, line.dash.split()))) if line.dash else "-"
    place = line.colour % len(LIGHT)
    few = not line.dash and len(line.x) <= _MOST_MARKED
    marked = line.marks or not line.joined or len(line.x) == 1 or few
    ax.plot(
        line.x,
        line.y,
        color=LIGHT[place],
        linestyle=dash if line.joined else "none",
        marker=_MARKS[place] if marked else "",
        markersize=3 if line.joined else 4,
        linewidth=1.2,
        alpha=1.0 if line.joined else 0.7,
        label=literal(line.name),
    )
    if line.x_low is not None and line.x_high is not None:
        ax.hlines(line.y, line.x_low, line.x_high, color=LIGHT[place], linewidth=0.6)


def _band(ax: Axes, band: Band) -> None:
    colour = LIGHT[band.colour % len(LIGHT)]
    low, high = ([value if math.isfinite(value) else math.nan for value in edge] for edge in (band.low, band.high))
    face, edge = to_rgba(colour, 0.3), to_rgba(colour, 0.8)
    ax.fill_between(band.x, low, high, facecolor=face, edgecolor=edge, linewidth=0.6, label=literal(band.name))


def _heat(figure: Figure, ax: Axes, heat: Heat) -> None:
    known = [value for value in _numbers(heat) if math.isfinite(value) and (heat.scale != "log" or value > 0)]
    norm: Normalize = Normalize(min(known, default=0.0), max(known, default=1.0))
    if heat.scale == "cosine":
        norm = Normalize(-1.0, 1.0)
    elif heat.scale == "log" and known:
        norm = LogNorm(min(known), max(known) if max(known) > min(known) else min(known) * 1.01)
    values = [
        [value if value is not None and math.isfinite(value) else math.nan for value in row] for row in heat.values
    ]
    # Below the colours: cells that are there, which are blank where no colour covers them.
    there = [[math.nan if value is None else 0.0 for value in row] for row in heat.values]
    grey = colormaps["gray"].with_extremes(over=_BLANK)
    ax.pcolormesh(heat.x_edges, heat.y_edges, there, norm=Normalize(-2, -1), cmap=grey, rasterized=True)
    mesh = ax.pcolormesh(
        heat.x_edges, heat.y_edges, values, norm=norm, cmap=colormaps[_MAPS[heat.scale]], rasterized=True
    )
    bar = figure.colorbar(mesh, ax=ax)
    bar.set_label(fill(literal(f"{heat.name} (grey: {heat.blank})"), 44), fontsize=8)


def _numbers(heat: Heat) -> Iterator[float]:
    return (value for row in heat.values for value in row if value is not None)


def _legend(figure: Figure, axes: Sequence[Axes], panels: Sequence[Panel]) -> None:
    """One legend where one panel has the series of all others, each drawn alike everywhere; else one for each panel.

    A line comes before the band of the same name. Bands over a vertical axis of names are named by that axis.
    """
    named = [{} if panel.y.ticks and not panel.lines else _named(ax) for ax, panel in zip(axes, panels, strict=True)]
    most = max(named, key=len)
    styles = {(line.name, line.colour, line.dash) for panel in panels for line in panel.lines}
    alike = len(styles) == len({name for name, *_ in styles})
    if alike and len(most) <= _MOST_KEYS and all(own.keys() <= most.keys() for own in named):
        if most and not _said_by_an_axis(list(most), panels):
            # About sixteen letters of this size go into an inch, and a key takes the room of seven.
            fit = int(16 * figure.get_figwidth() / (7 + max(map(len, most))))
            columns = min(max(fit, 1), 4, len(most))
            figure.legend(most.values(), most.keys(), loc="outside lower center", ncols=columns, fontsize=8)
        return
    for ax, own in zip(axes, named, strict=True):
        if own:
            ax.legend(own.values(), own.keys(), fontsize=7)


def _named(ax: Axes) -> dict[str, Any]:
    pairs = list(zip(*ax.get_legend_handles_labels(), strict=True))
    bands, lines = ([pair for pair in pairs if isinstance(pair[0], Line2D) is line] for line in (False, True))
    return {label: handle for handle, label in (*bands, *lines)}


def _said_by_an_axis(names: Sequence[str], panels: Sequence[Panel]) -> bool:
    """Whether the only series has the name of its axis."""
    return len(names) == 1 and any(names[0] == literal(panel.y.label) for panel in panels)
