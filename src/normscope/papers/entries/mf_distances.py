"""Mean-field paper, Figure 2, all four panels in one table: distances of lines of theory from observed lines."""

from collections.abc import Mapping

import numpy as np

from normscope.papers.entries.mf_modes import DATA, MODES
from normscope.papers.entry import Curve, Entry, Picture, Runs
from normscope.papers.experiments.phases import ETA_STARS, PHASES
from normscope.papers.phase_diagrams import NAMES, Diagram

CELLS = {"mlp": "fully connected", "cnn": "convolutional"}
LINES = NAMES | {"mean_mode": "corrected, mean mode alone"}
# Ranges of gamma in the table.
RANGES = ((0.0, 0.3), (0.3, 1.0), (1.0, np.inf))


def _diagrams(runs: Runs, data: str, cell: str) -> dict[str, Diagram]:
    """The diagram for each line of theory, for the lines whose runs are stored."""
    kept = {name: f"modes-{data}" if name == "mean_mode" else f"eta-stars-{data}" for name in LINES}
    swept = bool(runs.of(cell, f"phases-{data}"))
    return {
        name: Diagram(runs, f"phases-{data}", source, cell)
        for name, source in kept.items()
        if swept and runs.of(cell, source)
    }


def _cells(apart: Mapping[float, float]) -> list[str]:
    """Cells of the table: median and largest size, then the signed median of each range of gamma."""
    sizes = np.abs(list(apart.values()))
    cells = [f"{np.median(sizes):.2f}", f"{sizes.max():.2f}"]
    for low, high in RANGES:
        inside = [number for gamma, number in apart.items() if low <= gamma < high]
        cells.append(f"{np.median(inside):+.2f}" if inside else "")
    return cells


def _table(runs: Runs) -> list[list[str]]:
    rows = []
    for data in DATA:
        for cell, title in CELLS.items():
            for name, at in _diagrams(runs, data, cell).items():
                cells = [f"{data}, {title}", LINES[name]]
                rows.append([*cells, "divergence", *_cells(at.distance(name).by_value), str(at.n)])
                rows.append([*cells, "first rise", *_cells(at.rise_distance(name)), str(at.n)])
    head = ["panel", "eta*", "to", "median size", "worst size", "gamma < 0.3", "0.3 to 1", "above 1", "n"]
    return [head, *rows] if rows else []


def _panels(runs: Runs) -> list[Picture]:
    panels = []
    for data in DATA:
        for cell, title in CELLS.items():
            # The printed line is in the panels' own pictures; decades away, it would hide the others' differences.
            distances = {
                name: at.distance(name).by_value
                for name, at in _diagrams(runs, data, cell).items()
                if name != "printed"
            }
            lines = [Curve(LINES[name], list(apart), list(apart.values())) for name, apart in distances.items()]
            if lines:
                level = (0.0, "agreement")
                panels.append(
                    Picture(f"{data}, {title}", "gamma", "log10(divergence / eta*)", lines, log_x=True, level=level)
                )
    return panels


ENTRY = Entry(
    name="mf-distances",
    title="Figure 2: the distances of all four panels",
    source="Mean-field analysis of batch normalization, Figure 2",
    origin="as for the panels (`mf-fig-2-mlp-mnist` and its like); distances are log10(rate seen / eta*) in decades, "
    "positive where training goes on beyond eta*, signed medians by range of gamma; the grid knows a rate to 0.1",
    needs={PHASES[data]: tuple(CELLS) for data in DATA}
    | {ETA_STARS[data]: tuple(CELLS) for data in DATA}
    | {MODES[data]: tuple(CELLS) for data in DATA},
    statements=(),
    panels=_panels,
    table=_table,
)
