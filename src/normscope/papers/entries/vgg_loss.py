"""The loss that the paper plots: cross-entropy, or cross-entropy with an L2 term that it does not name."""

import numpy as np

from normscope.papers.curve_statistics import spread
from normscope.papers.entry import Curve, Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves
from normscope.papers.experiments.vgg import VGG

DECAYED = ("none, decayed", "batch, decayed")
# Read off Figure 4(a) of the arXiv version: step, loss.
SEEN = ((0, 4.3), (5_000, 1.36), (15_000, 0.63))


def _parts(curves: Curves) -> tuple[list[int], list[float], list[float]]:
    """Cross-entropy and penalty at the evaluations with a snapshot at the same step."""
    steps, looked = curves["evaluated"], curves["step"]
    nearest = [int(np.argmin(np.abs(np.array(looked) - step))) for step in steps]
    entropy = [float(np.mean(curves["loss"][max(0, i - 4) : i + 1])) for i in nearest]
    return steps, entropy, curves["penalty"]


def _explains(runs: Runs) -> list[Part]:
    parts = []
    for step, seen in SEEN:
        values = []
        for curves in runs.of("batch, decayed").values():
            steps, entropy, penalty = _parts(curves)
            i = int(np.argmin(np.abs(np.array(steps) - step)))
            values.append(entropy[i] + penalty[i])
        total = float(np.mean(values))
        words = f"at step {step:,} cross-entropy + L2 is {total:.3g}; the figure has {seen:g}"
        parts.append(Part(words, abs(total / seen - 1) <= 0.25))
    return parts


def _alone(runs: Runs) -> list[Part]:
    values = [float(np.mean(curves["loss"][-10:])) for curves in runs.of("batch").values()]
    final = float(np.mean(values))
    return [Part(f"cross-entropy alone ends at {final:.2g}; the figure has {SEEN[-1][1]:g}", final < 0.2 * SEEN[-1][1])]


def _panels(runs: Runs) -> list[Picture]:
    alone = list(runs.of("batch").values())
    lines = [spread("batch: cross-entropy", alone[0]["step"], [run["loss"] for run in alone])] if alone else []
    for cell in DECAYED:
        parts = [_parts(run) for run in runs.of(cell).values()]
        if parts:
            lines.append(spread(f"{cell}: cross-entropy", parts[0][0], [part[1] for part in parts]))
            both = [list(np.add(part[1], part[2])) for part in parts]
            lines.append(spread(f"{cell}: with L2", parts[0][0], both))
    if not lines:
        return []
    lines.append(Curve("read off the figure", [x for x, _ in SEEN], [y for _, y in SEEN], points=True))
    return [Picture("Loss, and with weight decay 4e-4", "step", "loss", lines, log_y=True)]


ENTRY = Entry(
    name="vgg-loss",
    title="Cross-entropy, and cross-entropy with L2",
    source="How Does Batch Normalization Help Optimization?, Figure 4(a); docs/evidence/errata.md, E-SAN-1",
    origin="as fig-1 at lr 0.1; weight decay 4e-4, inferred from the figure; penalty (4e-4/2)|W|^2 of all parameters",
    needs={VGG: ("batch", *DECAYED)},
    statements=(
        Statement(
            "not-alone",
            "The loss in the figure is not cross-entropy alone (our inference).",
            "Cross-entropy over the last 1,000 steps below a fifth of the 0.63 in the figure.",
            _alone,
            cells=("batch",),
            curves=("loss",),
            scales=("paper",),
        ),
        Statement(
            "with-l2",
            "An L2 term of 4e-4 explains the figure: 4.3 at the start, 1.36 at 5,000 and 0.63 at 15,000 steps (ours).",
            "Cross-entropy + L2 of the BatchNorm network within 25 % of the three numbers.",
            _explains,
            cells=DECAYED,
            curves=("penalty",),
            scales=("paper",),
        ),
    ),
    panels=_panels,
)
