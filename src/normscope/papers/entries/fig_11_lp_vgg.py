"""Figures 11, 13a and 14: VGG with l_1, l_2 and l_inf normalization."""

import numpy as np

from normscope.papers.curve_statistics import beta_panel, last_share, of_each, pooled_band, snapshot_lines, spread
from normscope.papers.entry import Entry, Part, Picture, Runs, Statement
from normscope.papers.experiments.vgg import MOMENT_LAYERS, VGG

LP = ("l1", "l2", "linf")
CELLS = ("none", "batch", *LP)
FIRST = 100


def _accuracy(runs: Runs, cell: str) -> float:
    """Training accuracy over the last tenth of a small run; over the whole of the paper's, where all end near 100 %."""
    share = 0.1 if runs.scale == "small" else 1.0
    return float(of_each(runs.of(cell), lambda curves: last_share(curves["accuracy"], share)).mean())


def _better(runs: Runs) -> list[Part]:
    none, gain = _accuracy(runs, "none"), 0.10 if runs.scale == "small" else 0.0
    accuracies = {cell: _accuracy(runs, cell) for cell in LP}
    return [
        Part(f"{cell}: training accuracy {a:.1%}, plain {none:.1%}", a > none + gain) for cell, a in accuracies.items()
    ]


def _comparable(runs: Runs) -> list[Part]:
    batch = _accuracy(runs, "batch")
    accuracies = {cell: _accuracy(runs, cell) for cell in LP}
    return [Part(f"{cell}: {a:.1%}, BatchNorm {batch:.1%}", a >= batch - 0.10) for cell, a in accuracies.items()]


def _smoother(runs: Runs) -> list[Part]:
    tops = {cell: float(np.quantile(pooled_band(runs.of(cell), FIRST), 0.95)) for cell in CELLS}
    return [
        Part(
            f"{cell}: 95th percentile of the band {tops[cell]:.3g}, plain {tops['none']:.3g}",
            tops[cell] <= tops["none"],
        )
        for cell in LP
    ]


def _drift(runs: Runs, cell: str) -> float:
    """Mean |mean since the first snapshot|, layers 2, 9, 13, over the run and the seeds."""
    rows = [
        np.mean([curves["moments"][str(n)]["mean_drift"] for n in MOMENT_LAYERS]) for curves in runs.of(cell).values()
    ]
    return float(np.mean(rows))


def _shift(runs: Runs) -> list[Part]:
    none = _drift(runs, "none")
    drifts = {cell: _drift(runs, cell) for cell in LP}
    return [
        Part(f"{cell}: means drift by {drift:.3g}, plain {none:.3g}", drift > none) for cell, drift in drifts.items()
    ]


def _panels(runs: Runs) -> list[Picture]:
    if not runs.has(LP):
        return []
    lines = []
    for cell in CELLS:
        curves = [run for run in runs.of(cell).values() if "accuracy" in run]
        if curves:
            n = min(len(run["accuracy"]) for run in curves)
            lines.append(spread(cell, curves[0]["step"][:n], [run["accuracy"][:n] for run in curves]))
    lr = next(run["lr"] for cell in CELLS for run in runs.of(cell).values())
    return [
        Picture("Training batches", "step", "share right", lines),
        Picture(
            "Largest loss along the gradient",
            "step",
            "cross-entropy",
            snapshot_lines(runs, CELLS, "loss_max"),
            log_y=True,
        ),
        beta_panel(runs, CELLS, lr),
    ]


ENTRY = Entry(
    name="fig-11",
    title="l_p normalization in VGG",
    source="How Does Batch Normalization Help Optimization?, Figures 11, 13 (left) and 14 (arXiv: 12, 5, 6)",
    origin="as fig-1 at lr 0.1; y = gamma (x - mean)/n_p + beta with n_p of the uncentred x (a reading of Section 3.3)",
    needs={VGG: CELLS},
    statements=(
        Statement(
            "better",
            "With any of the three the network performs better than the plain one.",
            "Training accuracy, mean over the run: above the plain network's (small scale: last tenth, by 10 points).",
            _better,
            curves=("accuracy",),
        ),
        Statement(
            "comparable",
            "All three perform comparably to BatchNorm or better.",
            "Training accuracy, mean over the run (small scale: last tenth): at least BatchNorm's minus 10 points.",
            _comparable,
            curves=("accuracy",),
        ),
        Statement(
            "smoother",
            "With any of the three the landscape is smoother than the plain network's.",
            "95th percentile of the loss band from step 100 on: at most the plain network's.",
            _smoother,
            curves=("loss_max",),
        ),
        Statement(
            "more-shift",
            "They lead to a larger shift of the distributions than the plain network has (Figure 14).",
            "Mean |drift of mean since the first snapshot|, layers 2, 9, 13: larger than the plain network's, for "
            "each.",
            _shift,
            curves=("moments",),
            means="All three take the mean off, so that a unit's mean behind them is its beta and moves as slowly as "
            "beta does. What l_1 and l_2 leave free is the variance: in layer 13 it drifts by 1.0 and 0.5, the plain "
            "network's by 0.13; in layer 2 by 0.8 and 0.4, the plain network's by 1.5. With l_inf it drifts less than "
            "the plain one's everywhere. A rule on variances would have found the caption true of two of the three, "
            "in deep layers.",
        ),
    ),
    panels=_panels,
)
