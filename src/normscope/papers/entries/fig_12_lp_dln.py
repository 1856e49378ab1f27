"""Figures 12 and 13b: the deep linear network with l_1, l_2 and l_inf normalization."""

import numpy as np

from normscope.papers.curve_statistics import beta_panel, snapshot_lines, spread, top
from normscope.papers.entry import Entry, Part, Picture, Runs, Statement
from normscope.papers.experiments.dln import DLN

LP = ("l1", "l2", "linf")
PLAIN, BATCH = "none, far", "batch, far"
CELLS = (PLAIN, BATCH, *LP)


def _final(runs: Runs, cell: str) -> float:
    return float(np.mean([curves["step_loss"][-1] for curves in runs.of(cell).values()]))


def _better(runs: Runs) -> list[Part]:
    plain = _final(runs, PLAIN)
    return [Part(f"{p}: final loss {_final(runs, p):.3g}, plain {plain:.3g}", _final(runs, p) <= plain) for p in LP]


def _comparable(runs: Runs) -> list[Part]:
    batch = _final(runs, BATCH)
    return [
        Part(f"{p}: final loss {_final(runs, p):.3g}, BatchNorm {batch:.3g}", _final(runs, p) <= 1.25 * batch)
        for p in LP
    ]


def _fastest(runs: Runs) -> list[Part]:
    def early(cell: str) -> float:
        return float(np.mean([run["step_loss"][1000 // run["keep"]] for run in runs.of(cell).values()]))

    words = f"at step 1,000 the loss is {early('l1'):.3g} with l_1 and {early(BATCH):.3g} with BatchNorm"
    return [Part(words, early("l1") <= early(BATCH))]


def _smoother(runs: Runs) -> list[Part]:
    tops = {cell: top(top(run["change_max"]) for run in runs.of(cell).values()) for cell in CELLS}
    return [
        Part(f"{p}: largest change of the gradient {tops[p]:.3g}, plain {tops[PLAIN]:.3g}", tops[p] <= tops[PLAIN])
        for p in LP
    ]


def _panels(runs: Runs) -> list[Picture]:
    lines = []
    for cell in CELLS:
        curves = list(runs.of(cell).values())
        if curves:
            n = min(len(run["step_loss"]) for run in curves)
            steps = [i * curves[0]["keep"] for i in range(n)]
            lines.append(spread(cell, steps, [run["step_loss"][:n] for run in curves]))
    if not lines:
        return []
    lr = next(run["lr"] for cell in CELLS for run in runs.of(cell).values())
    return [
        Picture("Training loss", "step", "1/2 summed squared error", lines, log_y=True),
        Picture(
            "Largest gradient change", "step", "l2 distance", snapshot_lines(runs, CELLS, "change_max"), log_y=True,
        ),
        beta_panel(runs, CELLS, lr, log_y=True),
    ]  # fmt: skip


ENTRY = Entry(
    name="fig-12",
    title="l_p normalization in the deep linear network",
    source="How Does Batch Normalization Help Optimization?, Figures 12 and 13 (right) (arXiv: 13, 5)",
    origin="as fig-9, looked at every 250 steps; y = gamma (x - mean)/n_p + beta with n_p of the uncentred x",
    needs={DLN: CELLS},
    statements=(
        Statement(
            "better",
            "With any of the three the network performs better than the plain one.",
            "Mean final loss of l_1, l_2 and l_inf: at most the plain network's, each.",
            _better,
        ),
        Statement(
            "comparable",
            "All three perform comparably to BatchNorm or better.",
            "Mean final loss of each at most 1.25 times BatchNorm's.",
            _comparable,
            means="l_1 and l_2 end where BatchNorm does; l_inf hardly learns at this rate and ends with the plain "
            "network.",
        ),
        Statement(
            "l1-fastest",
            "l_1 is the fastest (read off the figure).",
            "Mean loss at step 1,000: l_1 at most BatchNorm's.",
            _fastest,
            cells=(BATCH, "l1"),
        ),
        Statement(
            "smoother",
            "With any of the three the landscape is smoother than the plain network's: its peaks.",
            "Largest change of the gradient up to 30 lr, pooled over seeds: at most the plain network's, each.",
            _smoother,
        ),
    ),
    panels=_panels,
)
