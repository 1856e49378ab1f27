"""Charts as plain numbers: `static/page.js` draws them on the page, `drawing.py` draws them for papers.

A `Chart` is one figure of one or more panels side by side. A panel holds lines, bands and at most one heat map over
shared axes. Series with the same name in several panels are one entry of the legend. A colour is an index into `LIGHT`
and `DARK`, a palette that readers with any colour vision can tell apart; the dash of a line repeats the distinction.
"""

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from normscope.results import plain

SOLID, DASHED, DOTTED, DASH_DOT = "", "6 4", "1.5 3.5", "7 3 1.5 3"
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK, GREY = range(8)
# Okabe and Ito's palette, a little darker on light paper and a little lighter on dark paper, for contrast.
LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b8578f", "#b97d00", "#3a9ad9", "#16191d", "#8a939c")
DARK = ("#4fa8e8", "#ff8a4c", "#2cc79b", "#e293c4", "#f0bd4a", "#9fd3ff", "#e9ecef", "#87919b")


@dataclass(frozen=True)
class Axis:
    """One axis of a panel.

    Args:
        ticks: names at 0, 1, 2, ... in place of numbers.
        low, high: fixed limits, where limits taken from the data would mislead.
    """

    label: str
    log: bool = False
    ticks: tuple[str, ...] | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A curve, or single points.

    Args:
        texts: the words shown when a point is read, in place of its numbers.
        marks: whether every point has a mark.
        joined: whether neighbouring points are joined; False draws points alone.
        x_low, x_high: the ends of a horizontal error bar at each point.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = BLUE
    dash: str = SOLID
    texts: Sequence[str] | None = None
    marks: bool = False
    joined: bool = True
    x_low: Sequence[float] | None = None
    x_high: Sequence[float] | None = None


@dataclass(frozen=True)
class Band:
    """An area from `low` to `high` at each x."""

    name: str
    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    colour: int = BLUE
    texts: Sequence[str] | None = None


@dataclass(frozen=True)
class Heat:
    """Coloured cells.

    Args:
        x, y: the middles of the cells.
        x_edges, y_edges: the borders of the cells, one more than the middles.
        values: a row for each y, the first y first. A cell that is nan is drawn blank; None leaves the place empty.
        scale: "log", "linear", or "cosine" for -1 to 1 with a neutral middle.
        blank: the meaning of a blank cell.
        texts: words added to the number of each cell when it is read.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    x_edges: Sequence[float]
    y_edges: Sequence[float]
    values: Sequence[Sequence[float | None]]
    scale: str = "linear"
    blank: str = "not measured"
    texts: Sequence[Sequence[str]] | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...] = ()
    bands: tuple[Band, ...] = ()
    heat: Heat | None = None


@dataclass(frozen=True)
class Chart:
    """One figure.

    Args:
        caption: a description of the figure and how to read it; also its text alternative on the page.
        same_y: whether all panels have one vertical scale.
        wide: whether each panel takes the whole width, one below the other.
    """

    title: str
    caption: str
    panels: tuple[Panel, ...]
    same_y: bool = True
    wide: bool = False

    def plain(self) -> dict[str, Any]:
        """The chart as JSON values for the page: nan and infinities are strings."""
        values: dict[str, Any] = plain(asdict(self))
        return values


def spans_decades(*values: Sequence[float]) -> bool:
    """Whether a logarithmic axis fits: all finite numbers are positive and span more than a factor of twenty."""
    finite = [v for series in values for v in series if abs(v) < float("inf")]
    return bool(finite) and min(finite) > 0 and max(finite) > 20 * min(finite)


def unit_edges(count: int) -> list[float]:
    """Borders of `count` cells around 0, 1, 2, ..."""
    return [i - 0.5 for i in range(count + 1)]


def borders(middles: Sequence[float]) -> list[float]:
    """Borders of cells with these middles: half way between neighbours, in decades where all middles are positive.

    Example:
        >>> borders([1.0, 100.0])
        [0.1, 10.0, 1000.0]
    """
    if len(middles) == 1:
        (only,) = middles
        return [only * 0.8, only * 1.25] if only > 0 else [only - 0.5, only + 0.5]
    logs = min(middles) > 0
    x = [math.log10(value) for value in middles] if logs else list(middles)
    half = [(a + b) / 2 for a, b in pairwise(x)]
    ends = [2 * x[0] - half[0], *half, 2 * x[-1] - half[-1]]
    return [10**end for end in ends] if logs else ends


def shared_columns(rows: Sequence[Sequence[float]]) -> tuple[list[float], list[list[int | None]]]:
    """One set of columns for rows of cells that each have middles of their own.

    Returns the sorted middles of all rows and, for each row, the index of its own cell at every one of them; None
    where the row has no cell.

    Example:
        >>> shared_columns([[1.0, 2.0], [1.0, 1.1, 2.0]])
        ([1.0, 1.1, 2.0], [[0, 0, 1], [0, 1, 2]])
    """
    columns = sorted({middle for row in rows for middle in row})
    covering: list[list[int | None]] = []
    for row in rows:
        ends = borders(row)
        places = (bisect(ends, middle) - 1 for middle in columns)
        covering.append([place if 0 <= place < len(row) else None for place in places])
    return columns, covering
