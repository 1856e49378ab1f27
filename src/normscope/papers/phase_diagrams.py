"""Stored phase diagrams read again: the boundary over all seeds, lines of eta*, and rules about both.

A line gives eta* by value: as printed, as corrected, or as measured. Distances are in decades, log10(boundary / eta*):
positive where training survives beyond eta*. A size is the absolute value of a distance. With a grid of 0.2 decades
the boundary itself is known to +- 0.1.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import spearmanr

from normscope.papers.entry import Curve, Entry, HeatMap, Part, Picture, Runs, Statement
from normscope.papers.experiments.phases import ETA_STARS, PHASES
from normscope.sweeping.boundary import Distance, Edge, distance, edges
from normscope.sweeping.outcome import Outcome
from normscope.sweeping.plan import Cell

# Remarks on each rule that hold for every panel, shown beside the outcome. Remarks on one panel are in its own entry.
LIMITS = {
    "corrected": "The grid knows the boundary to +- 0.1 decade, and the worst distance includes that.",
    "measured": "Theory and measurement speak of one matrix, that of the first batch before the first step; what "
    "separates both from the boundary is what training does next.",
    "onset": "The rise is looked for after the ten steps in which momentum settles, on batches that differ; with one "
    "batch and no momentum it is sharper (`mf-onset`).",
    "best-rate": "With momentum 0.9 every rate from 0.0007 to 1 times eta* contracts the quadratic equally fast, so "
    "eta*/2 is special without momentum only (docs/evidence/errata.md).",
    "small-gamma": "Each gamma is taken at its own best rate, which is larger for small gamma.",
}
NAMES = {"printed": "as printed", "corrected": "corrected, as trained", "measured": "measured, first batch"}


class Diagram:
    """All seeds of one panel together.

    phases, eta_stars: names of the experiments that trained the panel and that predict it. n: seeds that both have.
    """

    def __init__(self, runs: Runs, phases: str, eta_stars: str, cell: str) -> None:
        self._runs, self._eta_stars = runs.of(cell, phases), runs.of(cell, eta_stars)
        self.edges: list[Edge] = edges(self._outcomes())
        self.seeds = sorted(self._runs)
        self.n = len(self._runs.keys() & self._eta_stars.keys())

    def _outcomes(self) -> list[Outcome]:
        outcomes = []
        for seed, curves in self._runs.items():
            for row, value in enumerate(curves["value"]):
                for place, rate in enumerate(curves["rate"][row]):
                    columns = [curves[name][row][place] for name in ("first_loss", "train_loss", "test_loss")]
                    first, last, test = (float(number) for number in columns)
                    outcomes.append(
                        Outcome(
                            cell=Cell(rate, value, seed),
                            initial_loss=math.nan,
                            diverged_at=curves["diverged_at"][row][place],
                            rose_at=curves["rose_at"][row][place],
                            train_loss=(first, last),
                            train_accuracy=(),
                            test_loss=(test,),
                            test_accuracy=(),
                            mode="",
                            note="",
                            environment={},
                        )
                    )
        return outcomes

    def line(self, name: str) -> dict[float, float]:
        """eta* by value: the median over seeds."""
        values = next(iter(self._eta_stars.values()))["value"]
        rows = np.array([curves[name] for curves in self._eta_stars.values()], dtype=float)
        return dict(zip(values, map(float, np.median(rows, axis=0)), strict=True))

    def distance(self, name: str) -> Distance:
        return distance(name, self.edges, self.line(name))

    def rises(self) -> dict[float, float]:
        """Rate of the first rise by value: the middle of the grid's interval, as the boundary is."""
        known = [edge for edge in self.edges if math.isfinite(edge.rises * edge.rises_resolution)]
        return {edge.value: edge.rises * 10**-edge.rises_resolution for edge in known}

    def rise_distance(self, name: str) -> dict[float, float]:
        """log10(first rise / eta*), by value."""
        line = self.line(name)
        return {value: math.log10(rate / line[value]) for value, rate in self.rises().items()}

    def later(self) -> dict[float, float]:
        """How many times the rate of the first rise that of divergence is, by value."""
        rises = self.rises()
        known = [edge for edge in self.edges if edge.value in rises and math.isfinite(edge.eta)]
        return {edge.value: edge.eta / rises[edge.value] for edge in known}

    def heat(self) -> HeatMap:
        """Test loss, mean over seeds; nan where one of them diverged."""
        first = self._runs[self.seeds[0]]
        means = [
            [_mean([self._runs[s]["test_loss"][row][place] for s in self.seeds]) for place in range(len(rates))]
            for row, rates in enumerate(first["rate"])
        ]
        return HeatMap("test loss, mean over seeds", first["rate"], first["value"], means)


def diagram(runs: Runs, data: str, cell: str) -> Diagram:
    """The diagram of a figure's panel."""
    return Diagram(runs, f"phases-{data}", f"eta-stars-{data}", cell)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(np.array(values, dtype=float)))


def size(line: Distance) -> tuple[float, float]:
    """Median and largest absolute distance."""
    sizes = [abs(apart) for apart in line.by_value.values()]
    return (float(np.median(sizes)), max(sizes)) if sizes else (math.inf, math.inf)


def said(apart: Distance) -> str:
    middle, worst = size(apart)
    return (
        f"{NAMES[apart.name]}: {middle:.2f} decades in the median, {worst:.2f} at worst "
        f"(signed {apart.median:+.2f} and {apart.worst:+.2f}, {apart.n} values)"
    )


def _three_orders(at: Diagram) -> list[Part]:
    apart, known = at.distance("printed"), [edge.eta for edge in at.edges if math.isfinite(edge.eta)]
    span = math.log10(max(known) / min(known)) if known else 0.0
    return [
        Part(said(apart), size(apart)[1] <= 0.5),
        Part(f"the boundary runs over {span:.1f} decades of the learning rate", span >= 2.5),
    ]


def _corrected(at: Diagram) -> list[Part]:
    apart = at.distance("corrected")
    middle, worst = size(apart)
    return [Part(said(apart), middle <= 0.1), Part(f"at worst {worst:.2f} decades", worst <= 0.2)]


def _better(at: Diagram) -> list[Part]:
    printed, corrected = (size(at.distance(name)) for name in ("printed", "corrected"))
    return [
        Part(f"median {corrected[0]:.2f} decades corrected, {printed[0]:.2f} as printed", corrected[0] < printed[0]),
        Part(f"worst {corrected[1]:.2f} decades corrected, {printed[1]:.2f} as printed", corrected[1] < printed[1]),
    ]


def _measured(at: Diagram) -> list[Part]:
    apart, other = at.distance("measured"), size(at.distance("corrected"))
    middle, worst = size(apart)
    return [
        Part(said(apart), middle <= other[0] + 0.02),
        Part(f"at worst {worst:.2f} decades where the corrected theory has {other[1]:.2f}", worst <= other[1] + 0.02),
    ]


def _onset(at: Diagram) -> list[Part]:
    later, apart = at.later(), at.rise_distance("corrected")
    if not later:
        return [Part("no rise within the grid", False)]
    signed = [apart[value] for value in later]
    middle, factors = float(np.median(np.abs(signed))), later.values()
    words = (
        f"the first rise lies {middle:.2f} decades from the corrected eta* (median; signed {np.median(signed):+.2f})"
    )
    factor = f"divergence comes at {min(factors):.1f} to {max(factors):.1f} times the rate of the first rise"
    return [Part(words, middle <= 0.1), Part(factor, max(factors) <= 1.6)]


def _best(at: Diagram) -> list[Part]:
    parts = []
    for name in ("printed", "corrected"):
        signed = [math.log10(2) + apart for apart in at.distance(name).best.values()]
        words = f"the best rate is {10 ** float(np.median(signed)) / 2:.2f} eta* in the median, eta* {NAMES[name]}"
        within = float(np.median(np.abs(signed)))
        parts.append(Part(f"{words}, {within:.2f} decades from one half (median of sizes)", within <= 0.2))
    return parts


def _small_gamma(at: Diagram) -> list[Part]:
    known = [edge for edge in at.edges if math.isfinite(edge.best_test_loss)]
    order = float(spearmanr([edge.value for edge in known], [edge.best_test_loss for edge in known]).statistic)
    smallest = min(known, key=lambda edge: abs(math.log(edge.value)))
    words = (
        f"least test loss {known[0].best_test_loss:.3g} at gamma {known[0].value:.2g}, {smallest.best_test_loss:.3g}"
    )
    return [
        Part(f"rank correlation {order:+.2f} of gamma with the least test loss over the rates", order >= 0.9),
        Part(f"{words} at {smallest.value:.2g}", known[0].best_test_loss < smallest.best_test_loss),
    ]


def panels(runs: Runs, data: str, cell: str, title: str, axis: str) -> list[Picture]:
    """The heatmap with its lines, and the distance of each line of eta* over the axis."""
    if not runs.of(cell, f"phases-{data}") or not runs.of(cell, f"eta-stars-{data}"):
        return []
    at = diagram(runs, data, cell)
    known = [edge for edge in at.edges if math.isfinite(edge.eta)]
    risen = [edge for edge in at.edges if math.isfinite(edge.rises)]
    values = [edge.value for edge in known]
    lines = [Curve("first divergence", [edge.eta for edge in known], values)]
    lines.append(Curve("first rise", [edge.rises for edge in risen], [edge.value for edge in risen]))
    tried = [edge for edge in at.edges if math.isfinite(edge.best)]
    best = Curve("best rate", [edge.best for edge in tried], [edge.value for edge in tried], points=True)
    apart = []
    for name, label in NAMES.items():
        line = at.line(name)
        lines.append(Curve(f"eta* {label}", list(line.values()), list(line)))
        by_value = at.distance(name).by_value
        apart.append(Curve(label, list(by_value), list(by_value.values())))
    return [
        Picture(title, "learning rate", axis, [*lines, best], log_x=True, log_y=True, heat=at.heat()),
        Picture("Distance", axis, "log10(divergence / eta*)", apart, log_x=True, level=(0.0, "agreement")),
    ]


def phase_entry(name: str, data: str, cell: str, network: str, shown: dict[str, str]) -> Entry:
    """One panel of Figure 2. shown: remarks on statements in this panel, by key; they follow those of `LIMITS`."""
    meanings = {key: f"{LIMITS.get(key, '')} {shown.get(key, '')}".strip() for key in LIMITS | shown}

    def about(rule: Callable[[Diagram], list[Part]]) -> Callable[[Runs], list[Part]]:
        return lambda runs: rule(diagram(runs, data, cell))

    rows = (
        (
            "three-orders",
            "The printed line agrees with the boundary of divergence over three orders of magnitude.",
            "Printed eta* within 0.5 decade of the boundary at every gamma; the boundary runs over at least 2.5 "
            "decades of the learning rate.",
            _three_orders,
        ),
        (
            "corrected",
            "Corrected, and as trained, the theory gives the boundary of divergence (ours, not the source's).",
            "Distance of corrected eta* from the boundary: at most 0.1 decade in the median over gamma, at most 0.2 "
            "at worst.",
            _corrected,
        ),
        (
            "closer",
            "The corrected theory lies closer to the boundary than the printed one (ours).",
            "Distance of corrected eta* smaller than that of printed eta*, in the median and at worst.",
            _better,
        ),
        (
            "measured",
            "The curvature measured on the first batch gives the boundary no worse than the theory (ours).",
            "Distance of measured eta*, median and worst: at most 0.02 decade more than that of the corrected one.",
            _measured,
        ),
        (
            "onset",
            "eta* marks the onset of instability, and divergence comes soon after it (ours).",
            "The first rise of the loss above its start lies within 0.1 decade of corrected eta* in the median; "
            "divergence comes at no more than 1.6 times that rate at every gamma.",
            _onset,
        ),
        (
            "best-rate",
            "The best learning rate is near eta*/2.",
            "Rate of least test loss within 0.2 decade of eta*/2 in the median over gamma, eta* printed and corrected.",
            _best,
        ),
        (
            "small-gamma",
            "Smaller gamma gives a lower test loss after five epochs: convergence is faster.",
            "Rank correlation of gamma with the least test loss over the rates at least 0.9; the least loss at the "
            "smallest gamma below that at gamma = 1.",
            _small_gamma,
        ),
    )
    return Entry(
        name=name,
        title=f"{network}: where training diverges, and what theory says",
        source="Mean-field analysis of batch normalization, Figure 2 and Section 4",
        origin="four layers, sigma_w^2 = 2, sigma_b^2 = 0.5, momentum 0.9, five epochs, five restarts (the source's); "
        "half squared error, batch 128, gamma 0.1 to 5 and learning rates 10^-3.5 to 10^0.5 (not stated there)",
        needs={PHASES[data]: (cell,), ETA_STARS[data]: (cell,)},
        statements=tuple(
            Statement(key, words, rule, about(judge), n=3, means=meanings.get(key, ""))
            for key, words, rule, judge in rows
        ),
        panels=lambda runs: panels(runs, data, cell, network, "gamma"),
    )
