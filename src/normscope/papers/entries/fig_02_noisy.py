"""Figures 2 and 7: covariate shift put in after BatchNorm moves the moments more and hardly harms training."""

import numpy as np

from normscope.papers.curve_statistics import last_share, mean_sd, of_each, spread
from normscope.papers.entry import Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves
from normscope.papers.experiments.vgg import MOMENT_LAYERS, VGG

CELLS = ("none", "batch", "noisy")
LAYERS = tuple(map(str, MOMENT_LAYERS))


def _accuracy(runs: Runs, cell: str) -> np.ndarray:
    """Training accuracy over the last tenth of a small run; over the whole of the paper's, where all end near 100 %."""
    share = 0.1 if runs.scale == "small" else 1.0
    return of_each(runs.of(cell), lambda curves: last_share(curves["accuracy"], share))


def _trains(runs: Runs) -> list[Part]:
    none, batch, noisy = (float(_accuracy(runs, cell).mean()) for cell in CELLS)
    gain = 0.10 if runs.scale == "small" else 0.0
    said = f"training accuracy {noisy:.1%} with noise, {batch:.1%} with BatchNorm alone, {none:.1%} without"
    return [
        Part(f"{said}: near BatchNorm's", noisy >= batch - 0.10),
        Part("above the plain network's" if noisy > none else "not above the plain network's", noisy > none + gain),
    ]


def _noise(runs: Runs) -> list[Part]:
    accuracies = of_each(runs.of("noise"), lambda curves: last_share(curves["accuracy"]))
    return [Part(f"the plain network with the same noise ends at {mean_sd(accuracies)}", bool(accuracies.max() < 0.20))]


def _moved(runs: Runs, cell: str, layer: str, what: str) -> float:
    return float(np.mean([np.mean(curves["moments"][layer][what]) for curves in runs.of(cell).values()]))


def _means(runs: Runs) -> list[Part]:
    parts = []
    for layer in LAYERS:
        none, batch, noisy = (_moved(runs, cell, layer, "mean_change") for cell in CELLS)
        words = f"layer {layer}: means move by {noisy:.3g} (noisy), {none:.3g} (plain), {batch:.3g} (BatchNorm) a step"
        parts.append(Part(words, noisy >= 3 * none and batch <= none))
    return parts


def _variances(runs: Runs) -> list[Part]:
    parts = []
    for layer in LAYERS:
        none, batch, noisy = (_moved(runs, cell, layer, "variance_change") for cell in CELLS)
        words = f"layer {layer}: variances move by {noisy:.3g} (noisy), {none:.3g} (plain), {batch:.3g} (BatchNorm)"
        parts.append(Part(words, noisy >= 3 * none and batch <= none))
    return parts


def _size(runs: Runs) -> list[Part]:
    moves = of_each(
        runs.of("noisy"), lambda curves: float(np.mean([curves["moments"][n]["mean_change"][0] for n in LAYERS]))
    )
    words = f"at the first step means move by {mean_sd(moves, '.3f')}"
    return [Part(words, bool(abs(moves.mean() - 1 / 3) <= 0.05))]


def _panels(runs: Runs) -> list[Picture]:
    lines = []
    for cell in (*CELLS, "noise"):
        curves = [run for run in runs.of(cell).values() if "accuracy" in run]
        if curves:
            n = min(len(run["accuracy"]) for run in curves)
            lines.append(spread(cell, curves[0]["step"][:n], [run["accuracy"][:n] for run in curves]))
    panels = [Picture("Training batches", "step", "share right", lines)]
    for what, unit in (("mean_change", "|change of mean|"), ("variance_change", "|change of variance|")):
        lines = []
        for cell in CELLS:
            curves = [run for run in runs.of(cell).values() if "moments" in run]
            if curves:
                lines.append(spread(f"{cell}, layer 9", *_moments(curves, what)))
        panels.append(Picture(f"From step to step, layer 9: {unit}", "step", unit, lines, log_y=True))
    return [panel for panel in panels if panel.lines]


def _moments(all_seeds: list[Curves], what: str) -> tuple[list[float], list[list[float]]]:
    rows = [run["moments"]["9"][what] for run in all_seeds]
    n = min(map(len, rows))
    return all_seeds[0]["step"][:n], [row[:n] for row in rows]


ENTRY = Entry(
    name="fig-2",
    title='"Noisy" BatchNorm',
    source="How Does Batch Normalization Help Optimization?, Figures 2 and 7, Algorithm 1, Section 2.1",
    origin="as fig-1 at lr 0.1; noise of Algorithm 1 with n_mu 0.5, n_sigma 1.25, r_mu = r_sigma = 0.1, a standard "
    "deviation; layers 2, 9, 13, before the ReLU",
    needs={VGG: (*CELLS, "noise")},
    statements=(
        Statement(
            "trains",
            "With noise after its BatchNorm layers the network trains nearly as well as with BatchNorm, and better "
            "than the plain one.",
            "Training accuracy, mean over the run (small scale: last tenth): noisy >= BatchNorm - 10 points, and above "
            "the plain network (small scale: by 10 points).",
            _trains,
            cells=CELLS,
            curves=("accuracy",),
        ),
        Statement(
            "noise-alone",
            "The same noise keeps the network without BatchNorm from training at all.",
            "Training accuracy of the last tenth below 20 % in every seed.",
            _noise,
            cells=("noise",),
            curves=("accuracy",),
            means="One of three seeds never leaves chance. The other two stand there for 5,000 steps and then learn, "
            "to 96 % of the training batches: the noise delays the plain network by a third of the run rather than "
            "stopping it. Judged after 4,500 steps, the statement would have stood.",
        ),
        Statement(
            "means",
            "Noisy BatchNorm has much larger changes of the means from step to step than the plain network, BatchNorm "
            "smaller ones.",
            "Mean |change of mean|, layers 2, 9, 13: noisy >= 3 plain, and BatchNorm <= plain.",
            _means,
            cells=CELLS,
            curves=("moments",),
        ),
        Statement(
            "variances",
            "The same for the variances.",
            "Mean |change of variance|, layers 2, 9, 13: noisy >= 3 plain, and BatchNorm <= plain.",
            _variances,
            cells=CELLS,
            curves=("moments",),
            means="BatchNorm is far below the plain network everywhere, and over the first third of the run the noise "
            "is 5 to 22 times above it. Later the plain network's own variances grow, and with them their "
            "changes, towards the size of the noise; the mean over the whole run counts those.",
        ),
        Statement(
            "noise-size",
            "The noise moves a unit's mean by 1/3 of its standard deviation a step (from Algorithm 1).",
            "Mean |change of mean| of layers 2, 9, 13 at the first step, where gamma = 1: within 0.05 of 1/3.",
            _size,
            cells=("noisy",),
            curves=("moments",),
        ),
    ),
    panels=_panels,
)
