"""Ours: how the corrected theory's distance from the boundary depends on width, depth, batch size, momentum, loss."""

import math
from collections.abc import Sequence

import numpy as np

from normscope.reproduction.diagrams import Diagram
from normscope.reproduction.entry import Entry, Line, Panel, Part, Runs, Statement
from normscope.reproduction.experiments.scaling import BASE, BATCHES, DEPTHS, MOMENTA, SCALING, WIDTHS

CHANGED: dict[str, dict[float, str]] = {
    "width": {1000: BASE, **{n: f"width {n}" for n in WIDTHS}},
    "depth": {4: BASE, **{n: f"depth {n}" for n in DEPTHS}},
    "batch size": {128: BASE, **{n: f"batch {n}" for n in BATCHES}},
    "momentum": {0.9: BASE, **{n: f"momentum {n:g}" for n in MOMENTA}},
}


def _distances(runs: Runs, cell: str, name: str) -> list[float]:
    """By gamma, in decades."""
    return list(Diagram(runs, SCALING.name, SCALING.name, cell).distance(name).by_value.values())


def _holds(runs: Runs, what: str) -> list[Part]:
    parts = []
    for number, cell in sorted(CHANGED[what].items()):
        found = _distances(runs, cell, "corrected")
        sizes = np.abs(found) if found else np.array([np.inf])
        words = f"{what} {number:g}: " + (", ".join(f"{apart:+.2f}" for apart in found) or "beyond the grid")
        parts.append(Part(words, bool(np.median(sizes) <= 0.1 and sizes.max() <= 0.2)))
    return parts


def _entropy(runs: Runs) -> list[Part]:
    found = _distances(runs, "cross-entropy", "corrected")
    least = 10 ** min(found) if found else math.inf
    return [Part(f"training diverges at {least:.1f} times eta* and more", least >= 3)]


def _panels(runs: Runs) -> list[Panel]:
    panels = []
    for what, cells in CHANGED.items():
        known = [(number, cell) for number, cell in sorted(cells.items()) if runs.of(cell)]
        lines = []
        for name in ("corrected", "measured", "printed"):
            places = [(n, apart) for n, cell in known for apart in _distances(runs, cell, name)]
            if places:
                x, y = zip(*places, strict=True)
                lines.append(Line(name, x, y, points=True))
        if len(known) > 1 and lines:
            level = (0.0, "agreement")
            log = what != "momentum"
            panels.append(Panel(f"By {what}", what, "log10(divergence / eta*)", lines, log_x=log, level=level))
    return panels


def _statement(what: str, cells: Sequence[str]) -> Statement:
    return Statement(
        what.replace(" ", "-"),
        f"The corrected theory gives the boundary of divergence at every {what}.",
        f"Distance of corrected eta* from the bisected boundary, at every {what}: at most 0.1 decade in the median "
        "over three gammas, at most 0.2 at worst.",
        lambda runs: _holds(runs, what),
        cells=cells,
    )


ENTRY = Entry(
    name="mf-scaling",
    title="The corrected theory over width, depth, batch size and momentum",
    source="ours, on the fully connected network of Mean-field analysis of batch normalization",
    origin="as for Figure 2 with one thing changed at a time; gamma 0.5, 1, 2; one epoch of MNIST (as many steps for "
    "large batches); the boundary bisected to 0.05 decades",
    needs={SCALING: tuple(SCALING.cells)},
    statements=(
        *(_statement(what, tuple(cells.values())) for what, cells in CHANGED.items()),
        Statement(
            "cross-entropy",
            "With cross-entropy eta* is no limit of training: divergence comes much later.",
            "The boundary at least 3 times corrected eta*, at every gamma.",
            _entropy,
            cells=("cross-entropy",),
        ),
    ),
    panels=_panels,
)
