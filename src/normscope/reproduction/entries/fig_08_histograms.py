"""Figure 8: distributions of one activation over training. Its caption claims nothing; it is drawn."""

import numpy as np

from normscope.reproduction.entry import Entry, Line, Panel, Runs
from normscope.reproduction.experiments.dln import DLN, HISTOGRAM_LAYERS

CELLS = ("none, far", "batch, far")


def _panels(runs: Runs) -> list[Panel]:
    panels = []
    for cell in CELLS:
        found = runs.of(cell)
        if not found:
            return []
        for layer in HISTOGRAM_LAYERS:
            lines = []
            for one in found[min(found)]["histograms"][str(layer)]:
                low, high = one["edges"]
                counts = np.array(one["counts"], dtype=float)
                width = (high - low) / len(counts)
                centres = low + width * (np.arange(len(counts)) + 0.5)
                lines.append(Line(f"step {one['step']:,}", list(centres), list(counts / (counts.sum() * width))))
            panels.append(Panel(f"{cell.partition(',')[0]}, layer {layer}, seed 0", "activation", "density", lines))
    return panels


ENTRY = Entry(
    name="fig-8",
    title="Distributions of activations in the deep linear network",
    source="How Does Batch Normalization Help Optimization?, Figure 8 (arXiv: 9)",
    origin="one unit of layers 1, 11 and 24, drawn once from the seed; over the batch, after the normalizer",
    needs={DLN: CELLS},
    statements=(),
    panels=_panels,
)
