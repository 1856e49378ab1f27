"""Mean-field paper, Figure 3: the fully connected network without BatchNorm, over the scale of its initial weights."""

import math

import numpy as np

from normscope.papers.entry import Entry, Part, Runs, Statement
from normscope.papers.experiments.phases import ETA_STARS, PHASES
from normscope.papers.phase_diagrams import diagram, panels, said, size


def _within(runs: Runs) -> list[Part]:
    at = diagram(runs, "mnist", "vanilla")
    parts = []
    for name in ("printed", "corrected", "measured"):
        apart = at.distance(name)
        parts.append(Part(said(apart), size(apart)[1] <= math.log10(5)))
    return parts


def _falls(runs: Runs) -> list[Part]:
    known = [edge for edge in diagram(runs, "mnist", "vanilla").edges if math.isfinite(edge.eta)]
    steps = np.diff([edge.eta for edge in known])
    words = f"{int((steps > 0).sum())} of {len(steps)} steps up in sigma_w raise the boundary"
    return [Part(f"{words}, {int((steps < 0).sum())} lower it", bool(len(steps) and (steps <= 0).all()))]


def _flatter(runs: Runs) -> list[Part]:
    """The plain network's boundary at sigma_w^2 = 2, between the two values of the grid beside it."""
    plain = [edge for edge in diagram(runs, "mnist", "vanilla").edges if math.isfinite(edge.eta)]
    batch = [edge for edge in diagram(runs, "mnist", "mlp").edges if math.isfinite(edge.eta)]
    if not plain or not batch:
        return [Part("the boundary lies outside the grid", False)]
    logs = np.interp(math.log(2) / 2, [math.log(e.value) for e in plain], [math.log(e.eta) for e in plain])
    without = math.exp(float(logs))
    above = [edge.value for edge in batch if edge.eta > without]
    unbroken = [e.value for i, e in enumerate(batch) if len(above) > i and above[i] == e.value]
    reach = max(unbroken, default=0.0)
    words = (
        f"without BatchNorm training diverges from {without:.2g} on; with it later for every gamma up to {reach:.2g}"
    )
    return [Part(words, 2 <= reach <= 4)]


ENTRY = Entry(
    name="mf-fig-3",
    title="Without BatchNorm: where training diverges, over the scale of the weights",
    source="Mean-field analysis of batch normalization, Figure 3 and Section 6.4",
    origin="the source's fully connected network without BatchNorm; sigma_w 0.5 to 3 and learning rates 10^-5 to 1 "
    "are ours, the rest as for Figure 2",
    needs={PHASES["mnist"]: ("vanilla", "mlp"), ETA_STARS["mnist"]: ("vanilla", "mlp")},
    statements=(
        Statement(
            "boundary",
            "Theory gives the largest learning rate of the plain network too.",
            "eta* printed, corrected and measured within a factor of 5 of the boundary at every sigma_w.",
            _within,
            cells=("vanilla",),
            means="Without BatchNorm divergence comes 5 to 6 times beyond the onset that eta* marks, on one batch and "
            "without momentum (`mf-onset/much-later`): the boundary is expected above the line.",
        ),
        Statement(
            "decreasing",
            "Larger initial weights allow smaller learning rates only.",
            "The boundary never rises from one sigma_w to the next.",
            _falls,
            cells=("vanilla",),
        ),
        Statement(
            "flatter",
            "With BatchNorm and gamma up to about 3 larger learning rates can be used than without it.",
            "The largest gamma up to which, without a gap, the boundary with BatchNorm lies above that of the plain "
            "network at sigma_w^2 = 2: between 2 and 4.",
            _flatter,
        ),
    ),
    panels=lambda runs: panels(runs, "mnist", "vanilla", "Fully connected without BatchNorm, MNIST", "sigma_w"),
)
