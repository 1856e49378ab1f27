"""Ours: how the corrected theory's distance from the boundary depends on width, depth, batch size, momentum, loss."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from normscope.papers.entries.mf_modes import run as modes
from normscope.papers.entry import Curve, Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Experiment
from normscope.papers.experiments.scaling import BASE, BATCHES, DEPTHS, MOMENTA, SCALING, WIDTHS
from normscope.papers.phase_diagrams import NAMES, Diagram

CHANGED: dict[str, dict[float, str]] = {
    "width": {1000: BASE, **{n: f"width {n}" for n in WIDTHS}},
    "depth": {4: BASE, **{n: f"depth {n}" for n in DEPTHS}},
    "batch size": {128: BASE, **{n: f"batch {n}" for n in BATCHES}},
    "momentum": {0.9: BASE, **{n: f"momentum {n:g}" for n in MOMENTA}},
}


# The theory's modes alone, without training.
MODES = Experiment(
    name="scaling-modes",
    what="the networks of scaling: eta* of the mean mode and of the data modes, by theory",
    settings={scale: {**settings, "batches": 1, "measured_at": []} for scale, settings in SCALING.settings.items()},
    cells=SCALING.cells,
    run=modes,
    seconds={("paper", "cpu"): 5.0, ("small", "cpu"): 2.0, ("paper", "cuda"): 10.0, ("small", "cuda"): 10.0},
    data="mnist",
)
LINES = {**NAMES, "mean_mode": "corrected, mean mode alone"}
# Cells with momentum 0.9 and squared error.
SHAPES = tuple(dict.fromkeys(cell for what in ("width", "depth", "batch size") for cell in CHANGED[what].values()))


def _diagram(runs: Runs, cell: str, name: str) -> Diagram:
    return Diagram(runs, SCALING.name, (MODES if name == "mean_mode" else SCALING).name, cell)


def _distances(runs: Runs, cell: str, name: str) -> list[float]:
    """Distances by gamma, in decades."""
    return list(_diagram(runs, cell, name).distance(name).by_value.values())


def _holds(runs: Runs, what: str) -> list[Part]:
    parts = []
    for number, cell in sorted(CHANGED[what].items()):
        distances = _distances(runs, cell, "corrected")
        sizes = np.abs(distances) if distances else np.array([np.inf])
        words = f"{what} {number:g}: " + (", ".join(f"{apart:+.2f}" for apart in distances) or "beyond the grid")
        parts.append(Part(words, bool(np.median(sizes) <= 0.1 and sizes.max() <= 0.2)))
    return parts


def _entropy(runs: Runs) -> list[Part]:
    distances = _distances(runs, "cross-entropy", "corrected")
    least = 10 ** min(distances) if distances else math.inf
    return [Part(f"training diverges at {least:.1f} times eta* and more", least >= 3)]


def _mean_mode(runs: Runs) -> list[Part]:
    """Every width, depth, batch size and gamma together."""
    top, mean = ([a for cell in SHAPES for a in _distances(runs, cell, name)] for name in ("corrected", "mean_mode"))
    middle = float(np.median(mean))
    words = f"divergence at {10 ** min(mean):.2f} to {10 ** max(mean):.2f} times eta* of the mean mode, median"
    other = f"{10 ** min(top):.2f} to {10 ** max(top):.2f} times that of the top mode"
    off = max(abs(apart - middle) for apart in mean)
    return [
        Part(
            f"{words} {10**middle:.2f} ({len(mean)} places); {other}",
            bool(1 <= 10 ** min(mean) <= 10 ** max(mean) <= 1.6),
        ),
        Part(f"from the one factor {10**middle:.2f} no place is further than {off:.2f} decades", off <= 0.1),
    ]


def _onset(runs: Runs) -> list[Part]:
    parts = []
    for number, cell in sorted(CHANGED["momentum"].items()):
        at = _diagram(runs, cell, "corrected")
        rise, later = list(at.rise_distance("corrected").values()), list(at.later().values())
        words = (
            f"momentum {number:g}: first rise {_signed(rise)} decades from eta*, divergence {_times(later)} times later"
        )
        parts.append(Part(words, bool(rise) and float(np.abs(rise).max()) <= 0.1))
    return parts


def _signed(values: Sequence[float]) -> str:
    return ", ".join(f"{number:+.2f}" for number in values)


def _times(values: Sequence[float]) -> str:
    return ", ".join(f"{number:.1f}" for number in values)


def _table(runs: Runs) -> list[list[str]]:
    rows = []
    known = [cell for cell in SCALING.cells if runs.of(cell, SCALING.name) and runs.of(cell, MODES.name)]
    for cell in known:
        at = _diagram(runs, cell, "corrected")
        apart = [_signed(_distances(runs, cell, name)) for name in ("corrected", "measured", "mean_mode")]
        rise = _signed(list(at.rise_distance("corrected").values()))
        mean, data = (_diagram(runs, cell, "mean_mode").line(name).values() for name in ("mean_mode", "data_mode"))
        ratio = _times([m / d for m, d in zip(mean, data, strict=True)])
        rows.append([cell, *apart, ratio, rise, _times(list(at.later().values())), str(at.n)])
    seen = "divergence from eta*"
    head = ["changed", f"{seen}, theory", f"{seen}, measured", f"{seen}, mean mode", "lambda, data mode / mean mode"]
    return [[*head, "first rise from eta*, theory", "divergence / first rise", "n"], *rows] if rows else []


def _panels(runs: Runs) -> list[Picture]:
    panels = []
    for what, cells in CHANGED.items():
        known = [(number, cell) for number, cell in sorted(cells.items()) if runs.of(cell, SCALING.name)]
        lines = []
        for name, label in LINES.items():
            there = [(n, cell) for n, cell in known if name != "mean_mode" or runs.of(cell, MODES.name)]
            distances = {n: _distances(runs, cell, name) for n, cell in there}
            distances = {n: apart for n, apart in distances.items() if apart}
            if distances:
                low, middle, high = np.quantile(list(distances.values()), (0.0, 0.5, 1.0), axis=1)
                lines.append(Curve(label, list(distances), list(middle), list(low), list(high)))
        if len(known) > 1 and lines:
            level = (0.0, "agreement")
            panels.append(
                Picture(f"By {what}", what, "log10(divergence / eta*)", lines, log_x=what == "batch size", level=level)
            )
    return panels


MEANINGS = {
    "width": "At width 250 a data mode has the top eigenvalue, and training survives it as it does on photographs "
    "(`mf-modes`); from eta* of the mean mode divergence is 0.12 to 0.16 decades away there as well. Everywhere else "
    "what is left is that divergence comes after the onset: 1.0 to 1.5 times the rate of the first rise.",
    "depth": "Depth 2 to 6: divergence 1.0 to 1.9 times the rate of the first rise, which is what is left of the "
    "distance; theory and measurement agree within 0.01 decades. Depth 8: gradients grow from layer to layer, and "
    "with them the data modes of the lower layers, one of which is the top one by now (1.4 to 1.6 times the mean "
    "mode's lambda; the measured is as large or larger). The boundary does not follow it: it stays where it is at "
    "depth 2, and from eta* of the mean mode it is 0.18 to 0.19 decades away. The theory's mean mode includes what "
    "data modes near it add to it, 16 % of lambda from depth 2 to 8, and the boundary shows nothing of that.",
    "batch size": "With 32 images a data mode is the top one, and 0.10 to 0.12 decades of the distance are the "
    "theory's own: the measured lambda is smaller by that. From eta* of the mean mode all four sizes are alike, 0.06 "
    "to 0.17 decades.",
    "momentum": "Not a matter of eta*: predicted and measured agree within 0.01 decades, and it is the onset at every "
    "momentum (`onset` below). Divergence comes the later the less momentum there is: 2.7 to 3.8 times the rate of the "
    "first rise without, 1.5 to 2.1 times at 0.5, 1.0 to 1.3 at 0.9. Beyond eta* the loss rises, and gamma and beta "
    "move to where the curvature is smaller. Without momentum and with them held at their start, divergence comes at "
    "1.5 to 1.7 times eta* in place of 2.0 to 3.5 (seed 0, 40 steps; measured once and not stored).",
}


def _trained(cells: Iterable[str]) -> tuple[str, ...]:
    """The sweeps of these cells, without the theory's modes."""
    return tuple(f"{SCALING.name}/{cell}" for cell in cells)


def _statement(what: str, cells: Iterable[str]) -> Statement:
    return Statement(
        what.replace(" ", "-"),
        f"The corrected theory gives the boundary of divergence at every {what}.",
        f"Distance of corrected eta* from the bisected boundary, at every {what}: at most 0.1 decade in the median "
        "over three gammas, at most 0.2 at worst.",
        lambda runs: _holds(runs, what),
        cells=_trained(cells),
        means=MEANINGS[what],
    )


ENTRY = Entry(
    name="mf-scaling",
    title="The corrected theory over width, depth, batch size and momentum",
    source="ours, on the fully connected network of Mean-field analysis of batch normalization",
    origin="as for Figure 2 with one thing changed at a time; gamma 0.5, 1, 2; one epoch of MNIST (as many steps for "
    "large batches); the boundary bisected to 0.05 decades; bands are over gamma",
    needs={SCALING: tuple(SCALING.cells), MODES: tuple(MODES.cells)},
    statements=(
        *(_statement(what, cells.values()) for what, cells in CHANGED.items()),
        Statement(
            "cross-entropy",
            "With cross-entropy, training goes on far above eta*: divergence comes much later.",
            "The boundary at least 3 times corrected eta*, at every gamma.",
            _entropy,
            cells=("cross-entropy",),
        ),
        Statement(
            "mean-mode",
            "Over width, depth and batch size the boundary is one and the same multiple of the mean mode's eta*.",
            "Momentum 0.9: divergence at 1 to 1.6 times eta* of the mean mode at every width, depth, batch size and "
            "gamma; no place further than 0.1 decade from the median of all.",
            _mean_mode,
            cells=SHAPES,
        ),
        Statement(
            "onset",
            "At every momentum eta* is the onset of instability.",
            "First rise within 0.1 decade of corrected eta* at momentum 0, 0.5 and 0.9, at every gamma.",
            _onset,
            cells=tuple(CHANGED["momentum"].values()),
            means="And divergence comes later, by the factors of the table: the less momentum, the later.",
        ),
    ),
    panels=_panels,
    table=_table,
)
