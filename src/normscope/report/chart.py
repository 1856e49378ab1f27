"""Figures as numbers: what the page draws, with nothing about how it is drawn.

A `Chart` is one figure of one or more panels side by side; a panel holds lines, bands and at most one heat map over
shared axes. Series with the same name are one entry of the legend in all panels. Colours are places in a palette that
is told apart with any colour vision; the dash of a line says the same once more.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from normscope.results import plain

SOLID, DASHED, DOTTED, DASH_DOT = "", "6 4", "1.5 3.5", "7 3 1.5 3"
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK, GREY = range(8)


@dataclass(frozen=True)
class Axis:
    """ticks: names at 0, 1, 2, ... instead of numbers. low, high: limits where the data's own would mislead."""

    label: str
    log: bool = False
    ticks: tuple[str, ...] | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """texts: what to say at each point instead of its numbers. joined: whether between two points there is anything."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = BLUE
    dash: str = SOLID
    texts: Sequence[str] | None = None
    marks: bool = False
    joined: bool = True


@dataclass(frozen=True)
class Band:
    """From low to high at each x."""

    name: str
    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    colour: int = BLUE
    texts: Sequence[str] | None = None


@dataclass(frozen=True)
class Heat:
    """values: a row for each of y, from the first on; nan is blank, and `blank` says what that means.

    x, y: the middles of the cells; x_edges, y_edges: their borders, one more. texts: what each cell adds to its number.
    scale: "log", "linear", or "cosine" for -1 to 1 with a middle.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    x_edges: Sequence[float]
    y_edges: Sequence[float]
    values: Sequence[Sequence[float]]
    scale: str = "linear"
    blank: str = "not measured"
    texts: Sequence[Sequence[str]] | None = None


@dataclass(frozen=True)
class Panel:
    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...] = ()
    bands: tuple[Band, ...] = ()
    heat: Heat | None = None


@dataclass(frozen=True)
class Chart:
    """caption: what is seen and how to read it; also the text alternative. same_y: one vertical scale for all panels.

    wide: panels take the whole width, one below the other.
    """

    title: str
    caption: str
    panels: tuple[Panel, ...]
    same_y: bool = True
    wide: bool = False

    def plain(self) -> dict[str, Any]:
        """For the page: numbers that JSON has no word for as strings."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def spans_decades(*values: Sequence[float]) -> bool:
    """Whether a logarithmic axis fits: all finite numbers positive, over more than a factor of twenty."""
    finite = [v for series in values for v in series if abs(v) < float("inf")]
    return bool(finite) and min(finite) > 0 and max(finite) > 20 * min(finite)


def unit_edges(count: int) -> list[float]:
    """Borders of `count` cells around 0, 1, 2, ..."""
    return [i - 0.5 for i in range(count + 1)]
