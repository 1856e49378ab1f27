"""Figures 1, 2 and 14: distributions of one activation of VGG over training, under each normalizer; drawn.

What Figure 14's caption claims about them is judged in `fig-11/more-shift`, Figure 2's in `fig-2`.
"""

from normscope.papers.curve_statistics import histogram_panels
from normscope.papers.entry import Entry
from normscope.papers.experiments.vgg import HISTOGRAM_LAYERS, VGG

CELLS = ("none", "batch", "noisy", "l1", "l2", "linf")
ENTRY = Entry(
    name="fig-14",
    title="Distributions of activations in VGG",
    source="How Does Batch Normalization Help Optimization?, Figures 1, 2 and 14 (arXiv: 1, 2, 6)",
    origin="as fig-1 at lr 0.1; one unit of layers 3 and 11, from the seed; over batch and space, before the ReLU",
    needs={VGG: CELLS},
    statements=(),
    panels=lambda runs: histogram_panels(runs, CELLS, HISTOGRAM_LAYERS),
)
