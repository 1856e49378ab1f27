"""Figure 10: the change of the gradient by the distance moved along it."""

import numpy as np

from normscope.papers.curve_statistics import top
from normscope.papers.entry import Curve, Entry, Part, Picture, Runs, Statement
from normscope.papers.experiments.dln import DLN
from normscope.papers.experiments.vgg import VGG

VGG_CELLS, DLN_CELLS = ("vgg/none", "vgg/batch"), ("none, far", "batch, far")
FIRST = 100


def _changes(runs: Runs, experiment: str, cell: str, c: float) -> np.ndarray:
    """|grad L(theta_c) - g| at every snapshot from step 100 on, of all seeds."""
    rows = []
    for curves in runs.of(cell, experiment).values():
        place = curves["factors"].index(c)
        pairs = zip(curves["step"], curves["change"], strict=True)
        rows.append([look[place] for step, look in pairs if step >= FIRST])
    return np.concatenate([np.array(row, dtype=float) for row in rows])


def _vgg(runs: Runs) -> list[Part]:
    none, batch = (np.quantile(_changes(runs, "vgg", cell, 4.0), 0.95) for cell in ("none", "batch"))
    words = f"at 4 lr the 95th percentile of the change is {none / batch:.3g} times larger without BatchNorm"
    return [Part(words, bool(none / batch >= 2))]


def _dln(runs: Runs) -> list[Part]:
    none, batch = (top(_changes(runs, "dln", cell, 30.0)) for cell in DLN_CELLS)
    words = f"at 30 lr the largest change is {none / batch:.3g} times larger without BatchNorm"
    return [Part(words, bool(none / batch >= 10))]


def _typical(runs: Runs) -> list[Part]:
    parts = []
    for c in (0.01, 1.0, 30.0):
        none, batch = (np.median(_changes(runs, "dln", cell, c)) for cell in DLN_CELLS)
        words = f"at {c:g} lr the median change is {batch:.3g} with BatchNorm and {none:.3g} without"
        parts.append(Part(words, bool(batch < none)))
    return parts


def _panels(runs: Runs) -> list[Picture]:
    panels = []
    for title, experiment, cells in (
        ("VGG", "vgg", ("none", "batch")),
        ("Deep linear network", "dln", DLN_CELLS),
    ):
        lines = []
        for cell in cells:
            curves = [run for run in runs.of(cell, experiment).values() if "change" in run]
            for when, steps in (("early", slice(None, 10)), ("late", slice(-10, None))):
                if curves:
                    rows = np.array(curves[0]["change"][steps], dtype=float)
                    lines.append(Curve(f"{cell}, {when}", curves[0]["factors"], list(np.median(rows, 0))))
        if lines:
            panels.append(
                Picture(
                    f"{title}, seed 0, medians of ten snapshots",
                    "distance / learning rate",
                    "change of gradient, l2",
                    lines,
                    True,
                    True,
                )
            )
    return panels


ENTRY = Entry(
    name="fig-10",
    title="Predictiveness of the gradient by distance",
    source="How Does Batch Normalization Help Optimization?, Figure 10 (arXiv: 11)",
    origin="points c = 1/2, 1, 2, 4 (VGG) and 1/100, 1/10, 1, 10, 30 (DLN) of the figure; DLN: every 250 steps",
    needs={VGG: ("none", "batch"), DLN: DLN_CELLS},
    statements=(
        Statement(
            "vgg",
            "VGG: gradients are much more predictive with BatchNorm and change slowly nearby.",
            "From step 100 on, at c = 4: 95th percentile of the change, without / with BatchNorm >= 2.",
            _vgg,
            cells=VGG_CELLS,
            curves=("change",),
        ),
        Statement(
            "dln",
            "Deep linear network: the same, in its peaks.",
            "From step 100 on, at c = 30: largest change, pooled over seeds, without / with BatchNorm >= 10.",
            _dln,
            cells=DLN_CELLS,
            curves=("change",),
            means="Of the largest change in the run only. The picture shows medians, early and late, and they are the "
            "other way round: dln-typical.",
        ),
        Statement(
            "dln-typical",
            "Deep linear network: the same, in the middle of the snapshots.",
            "From step 100 on, at c = 1/100, 1 and 30: median change, pooled over seeds, smaller with BatchNorm.",
            _typical,
            cells=DLN_CELLS,
            curves=("change",),
            means="The plain network has stopped: its gradient is nearly zero, and so is every change of it. With "
            "BatchNorm the network goes on at the edge of stability. Added when the numbers were known.",
        ),
    ),
    panels=_panels,
)
