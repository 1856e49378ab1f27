"""Figure 8: distributions of one activation over training. The caption has no claim, so the figure is only drawn."""

from normscope.papers.curve_statistics import histogram_panels
from normscope.papers.entry import Entry
from normscope.papers.experiments.dln import DLN, HISTOGRAM_LAYERS

CELLS = ("none, far", "batch, far")
ENTRY = Entry(
    name="fig-8",
    title="Distributions of activations in the deep linear network",
    source="How Does Batch Normalization Help Optimization?, Figure 8 (arXiv: 9)",
    origin="one unit of layers 1, 11 and 24, drawn once from the seed; over the batch, after the normalizer",
    needs={DLN: CELLS},
    statements=(),
    panels=lambda runs: histogram_panels(runs, CELLS, HISTOGRAM_LAYERS),
)
