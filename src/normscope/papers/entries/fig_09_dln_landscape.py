"""Figure 9: the landscape of the deep linear network over training, with and without BatchNorm."""

import numpy as np

from normscope.papers.curve_statistics import band_lines, beta_panel, each, gradient_change_panel, pooled, top
from normscope.papers.entry import Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves
from normscope.papers.experiments.dln import DLN

CELLS = ("none", "batch")
FAR = ("none, far", "batch, far")
# The first snapshot of a BatchNorm network is left out: every gamma is 1 and nothing has moved.
FIRST = 25


def _loss(runs: Runs) -> list[Part]:
    tops = [(top(a["loss_max"]), top(b["loss_max"])) for a, b in runs.pairs("none", "batch")]
    ratio = max(a for a, _ in tops) / max(b for _, b in tops)
    worst = [a / b for a, b in tops]
    return [
        Part(
            f"the highest loss along the gradient is {ratio:.3g} times higher without (seeds: {each(worst)})",
            ratio >= 5,
        )
    ]


def _changes(runs: Runs) -> list[Part]:
    tops = [(top(a["change_max"]), top(b["change_max"])) for a, b in runs.pairs("none", "batch")]
    ratio = max(a for a, _ in tops) / max(b for _, b in tops)
    return [
        Part(
            f"the largest change of the gradient is {ratio:.3g} times larger without "
            f"(seeds: {each([a / b for a, b in tops])})",
            ratio >= 10,
        )
    ]


def _beta(runs: Runs) -> list[Part]:
    limit = 2 / next(iter(runs.of("batch").values()))["lr"]
    batch = top(pooled(runs.of("batch"), "beta", FIRST)) / limit
    none = top(pooled(runs.of("none"), "beta")) / limit
    return [
        Part(f"with BatchNorm beta peaks at {batch:.3g} times 2/lr", batch <= 1.5),
        Part(f"without at {none:.3g} times", none >= 10),
    ]


def _average(runs: Runs) -> list[Part]:
    def width(curves: Curves) -> float:
        ratio = np.array(curves["loss_max"], dtype=float) / np.array(curves["loss_min"], dtype=float)
        return float(np.exp(np.log(ratio).mean()))

    pairs = [(width(a), width(b)) for a, b in runs.pairs("none", "batch")]
    narrower = sum(b < a for a, b in pairs)
    return [
        Part(
            f"the average band, largest over smallest loss, is {each([b for _, b in pairs])} with BatchNorm and "
            f"{each([a for a, _ in pairs])} without: narrower with it in {narrower} of {len(pairs)} seeds",
            narrower == len(pairs),
        )
    ]


def _steady(runs: Runs) -> list[Part]:
    pairs = [(float(np.median(a["change_max"])), float(np.median(b["change_max"]))) for a, b in runs.pairs(*CELLS)]
    smaller = sum(b < a for a, b in pairs)
    return [
        Part(
            f"the median change of the gradient is {each([b for _, b in pairs])} with BatchNorm and "
            f"{each([a for a, _ in pairs])} without: smaller with it in {smaller} of {len(pairs)} seeds",
            smaller == len(pairs),
        )
    ]


def _performance(runs: Runs) -> list[Part]:
    finals = [(a["step_loss"][-1], b["step_loss"][-1]) for a, b in runs.pairs("none", "batch")]
    ratio = float(np.mean([a for a, _ in finals]) / np.mean([b for _, b in finals]))
    return [Part(f"the final loss is {ratio:.3g} times higher without BatchNorm", ratio >= 1.5)]


def _beyond(runs: Runs) -> list[Part]:
    parts = []
    for c in (100.0, 300.0):
        tops = []
        for cell in FAR:
            curves = list(runs.of(cell).values())
            place = curves[0]["factors"].index(c)
            tops.append(top(row[place] for run in curves for row in run["change"]))
        ratio = tops[0] / tops[1]
        parts.append(
            Part(
                f"at {c:g} times lr the gradient changes by up to {ratio:.3g} times more without BatchNorm", ratio >= 10
            )
        )
    return parts


def _plateau(runs: Runs) -> list[Part]:
    parts = []
    for cell in CELLS:
        falls = []
        for curves in runs.of(cell).values():
            losses = np.array(curves["step_loss"], dtype=float)
            tenth = len(losses) // 10
            falls.append(losses[-2 * tenth : -tenth].mean() / losses[-tenth:].mean() - 1)
        words = f"over the last tenth of the steps the loss falls by {each(falls, '.1%')} ({cell})"
        parts.append(Part(words, top(falls) <= 0.05))
    return parts


def _panels(runs: Runs) -> list[Picture]:
    if not runs.has(CELLS):
        return []
    lr = next(iter(runs.of("batch").values()))["lr"]
    return [
        Picture(
            "Loss along the gradient, seed 0",
            "step",
            "1/2 summed squared error",
            band_lines(runs, CELLS, "loss_min", "loss_max"),
            log_y=True,
        ),
        gradient_change_panel(runs, CELLS),
        beta_panel(runs, CELLS, lr, log_y=True),
    ]


ENTRY = Entry(
    name="fig-9",
    title="Landscape of the deep linear network",
    source="How Does Batch Normalization Help Optimization?, Figure 9 (arXiv: 10)",
    origin="25 layers of 10 x 10, n = 1000, lr 1e-6, 10,000 steps (Appendix A.1); 1/2 summed squared error, inferred",
    needs={DLN: (*CELLS, *FAR)},
    statements=(
        Statement(
            "loss-peaks",
            "BatchNorm makes the loss vary less along the gradient: its peaks.",
            "Highest loss seen along the gradient, pooled over seeds: without / with BatchNorm >= 5.",
            _loss,
            cells=CELLS,
        ),
        Statement(
            "loss-average",
            "BatchNorm makes the loss vary less along the gradient: on average over the run.",
            "Geometric mean over the snapshots of largest/smallest loss: smaller with BatchNorm in every seed.",
            _average,
            cells=CELLS,
            means="Only the peaks are tamed. The paper's own figure has the wider band with BatchNorm from step 4,000 "
            "on; the network with BatchNorm has a lower loss there, and the same step is a larger share of it.",
        ),
        Statement(
            "gradient",
            "BatchNorm makes the gradient change less along its own direction: its peaks.",
            "Largest change of the gradient, pooled over seeds and snapshots: without / with BatchNorm >= 10.",
            _changes,
            cells=CELLS,
        ),
        Statement(
            "gradient-average",
            "BatchNorm makes the gradient change less along its own direction: in the middle of the snapshots.",
            "Median over the snapshots of the largest change of the gradient: smaller with BatchNorm in every seed.",
            _steady,
            cells=CELLS,
            means="Peaks again. From step 2,000 on the plain network hardly moves: its gradient is nearly zero and "
            "cannot change much.",
        ),
        Statement(
            "beta",
            "BatchNorm lowers the effective beta-smoothness: its peaks.",
            "Largest beta from step 25 on: with BatchNorm <= 1.5 (2/lr); without >= 10 (2/lr), pooled over seeds.",
            _beta,
            cells=CELLS,
            means="beta saturates at 2/lr for every network that trains at the edge of stability, where one step turns "
            "the gradient round. What can be compared are spikes above 2/lr, not means.",
        ),
        Statement(
            "performance",
            "With BatchNorm the network performs better.",
            "Mean final loss: without / with BatchNorm >= 1.5.",
            _performance,
            cells=CELLS,
        ),
        Statement(
            "beyond-30",
            "BatchNorm goes on smoothing beyond the largest step shown, 30 times the learning rate: the peaks.",
            "At 100 and at 300 times lr, largest change of the gradient, pooled: without / with BatchNorm >= 10.",
            _beyond,
            cells=FAR,
        ),
        Statement(
            "plateau",
            "The training loss is on a plateau at 10,000 steps.",
            "Mean loss of the last tenth of the steps: at most 5 % below that of the tenth before, in every seed.",
            _plateau,
            cells=CELLS,
            scales=("paper",),
        ),
    ),
    panels=_panels,
)
