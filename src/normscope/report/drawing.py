"""The page's charts as figures for papers: the same numbers and labels, drawn by matplotlib."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from normscope.report.chart import Axis, Band, Chart, Heat, Line, Panel
from normscope.report.document import Section
from normscope.report.labels import literal
from normscope.saving import save_figure

FORMATS = ("pdf", "png", "svg")
# The page's palette on light paper, in the order of `chart`.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b8578f", "#b97d00", "#3a9ad9", "#16191d", "#8a939c")
_MAPS = {"log": "viridis", "linear": "cividis", "cosine": "PuOr_r"}
_ROW, _MOST_NAMES, _MOST_KEYS = 3, 24, 10


def write_figures(sections: Sequence[Section], folder: Path) -> list[Path]:
    """Every chart as 01-its-title.pdf, .png and .svg; their paths."""
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
    """All panels in rows of three, or one below the other where the chart is wide."""
    columns = 1 if chart.wide else min(len(chart.panels), _ROW)
    rows = -(-len(chart.panels) // columns)
    width = 7.5 if chart.wide or columns == 1 else 4.4 * columns
    figure = Figure(figsize=(width, 3.6 * rows + 0.4), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False, sharey=chart.same_y and len(chart.panels) > 1)
    for ax, panel in zip(places.flat, chart.panels, strict=False):
        _panel(figure, ax, panel)
    for ax in places.flat[len(chart.panels) :]:
        ax.set_visible(False)
    figure.suptitle(literal(chart.title), fontsize=11)
    _legend(figure, list(places.flat)[: len(chart.panels)])
    return figure


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
    ax.plot(
        line.x,
        line.y,
        color=COLOURS[line.colour % len(COLOURS)],
        linestyle=dash if line.joined else "none",
        marker="o" if line.marks or not line.joined else "",
        markersize=3,
        linewidth=1.2,
        label=literal(line.name),
    )


def _band(ax: Axes, band: Band) -> None:
    colour = COLOURS[band.colour % len(COLOURS)]
    ax.fill_between(band.x, band.low, band.high, color=colour, alpha=0.3, linewidth=0.6, label=literal(band.name))


def _heat(figure: Figure, ax: Axes, heat: Heat) -> None:
    known = [
        value for row in heat.values for value in row if math.isfinite(value) and (heat.scale != "log" or value > 0)
    ]
    norm: Normalize = Normalize(min(known, default=0.0), max(known, default=1.0))
    if heat.scale == "cosine":
        norm = Normalize(-1.0, 1.0)
    elif heat.scale == "log" and known:
        norm = LogNorm(min(known), max(known) if max(known) > min(known) else min(known) * 1.01)
    ax.set_facecolor("#d9d9d9")
    values = [[value if math.isfinite(value) else math.nan for value in row] for row in heat.values]
    mesh = ax.pcolormesh(
        heat.x_edges, heat.y_edges, values, norm=norm, cmap=colormaps[_MAPS[heat.scale]], rasterized=True
    )
    bar = figure.colorbar(mesh, ax=ax)
    bar.set_label(fill(literal(f"{heat.name} (grey: {heat.blank})"), 44), fontsize=8)


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One for all panels; none where a series a look would make it a list."""
    named = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if 1 < len(named) <= _MOST_KEYS:
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=min(len(named), 4), fontsize=8)
