"""The encyclopedia article, "Linear convergence": least squares, halfspaces, a network with one hidden layer."""

import numpy as np

from normscope.papers.curve_statistics import each
from normscope.papers.entry import Curve, Entry, Part, Picture, Runs, Statement
from normscope.papers.experiments.solvers import SOLVERS

# Tolerance in units of the first gap: both sides are sums of some hundred products.
FLOOR = 1e-12


def _kept(runs: Runs, name: str) -> tuple[int, int]:
    """On how many of the problems the linear bound holds at every step."""
    holding = []
    for curves in runs.of("least squares").values():
        for gap, bound in zip(curves[name], curves["bound"], strict=True):
            holding.append(all(g <= b * (1 + 1e-5) + FLOOR for g, b in zip(gap, bound, strict=True)))
    return sum(holding), len(holding)


def _least_squares(runs: Runs) -> list[Part]:
    holding, total = _kept(runs, "gap")
    return [Part(f"the bound (1 - mu/L)^(2t) holds at every step on {holding} of {total} problems", holding == total)]


def _sublinear(runs: Runs) -> list[Part]:
    holding, total = _kept(runs, "descent")
    words = f"plain gradient descent keeps the linear bound (1 - mu/L)^(2t) on {holding} of {total} problems"
    return [Part(words, holding == 0)]


def _halfspace(runs: Runs, form: str) -> list[Part]:
    parts = []
    for loss in ("softplus", "sigmoid"):
        broken = []
        for curves in runs.of("halfspaces").values():
            gap, bound = np.array(curves[f"{loss}, {form}"]), np.array(curves["bound"])
            broken.append(1 - float(np.mean(gap[1:] <= bound[1 : len(gap)] * (1 + 1e-5) + FLOOR)))
        parts.append(Part(f"{loss}: the bound is broken in {each(broken, '.0%')} of the steps", max(broken) == 0))
    return parts


def _unit(runs: Runs) -> list[Part]:
    broken = []
    for curves in runs.of("network").values():
        gap, bound = np.array(curves["gap"]), np.array(curves["bound"])
        broken.append(1 - float(np.mean(gap <= bound * (1 + 1e-5) + 1e-8)))
    return [Part(f"the bound is broken in {each(broken, '.0%')} of the steps", max(broken) == 0)]


def _aligned(runs: Runs) -> list[Part]:
    rows = list(runs.of("network").values())
    cosines = [min(row["cosines"]) for row in rows]
    below = [row["below_aligned"] for row in rows]
    words = f"joint minima (gradient {each([row['gradient'] for row in rows], '.0e')}) have cosines of "
    return [
        Part(
            f"{words}{each(cosines, '.3f')}, and lie {each(below, '.2e')} below the best aligned point",
            min(cosines) > 0.9999,
        )
    ]


def _panels(runs: Runs) -> list[Picture]:
    by_seed = runs.of("least squares")
    panels = []
    if by_seed:
        run = by_seed[min(by_seed)]
        steps = list(range(len(run["gap"][0])))
        lines = [
            Curve(name, steps, run[key][0])
            for name, key in (("normalized", "gap"), ("gradient descent", "descent"), ("bound", "bound"))
        ]
        panels.append(Picture("Least squares, first problem", "step", "gap / first gap", lines, log_y=True))
    by_seed = runs.of("halfspaces")
    if by_seed:
        run = by_seed[min(by_seed)]
        # Below rounding, whether a gap is exactly zero is chance.
        lines = [Curve(name, list(range(len(run[name]))), list(np.maximum(run[name], 1e-16))) for name in run]
        panels.append(Picture("Halfspaces, direction, seed 0", "step", "gap / first gap", lines, log_y=True))
    by_seed = runs.of("network")
    if by_seed:
        run = by_seed[min(by_seed)]
        lines = [Curve(name, list(range(len(run[name]))), run[name]) for name in ("gap", "bound")]
        panels.append(Picture("One unit of a network, seed 0", "step", "gap / first gap", lines, log_y=True))
    return panels


ENTRY = Entry(
    name="convergence",
    title="Linear convergence in normalized parametrization",
    source='Encyclopedia article "Batch normalization", Linear convergence; Kohler et al. 2018',
    origin="random least squares of 2 to 19 features, L/mu 2 to 1000; Gaussian halfspaces of 50 features, L/mu = 3; "
    "two tanh units in three dimensions, softplus",
    needs={SOLVERS: ("least squares", "halfspaces", "network")},
    statements=(
        Statement(
            "least-squares",
            "Least squares with BatchNorm converge linearly: rho - rho* <= (1 - mu/L)^(2t) of its first value.",
            "On every random problem, at every step.",
            _least_squares,
            n=5,
            exact=True,
            cells=("least squares",),
        ),
        Statement(
            "sub-linear",
            "Regular gradient descent on least squares converges only sub-linearly.",
            "Gradient descent with step 1/(2L) breaks the linear bound (1 - mu/L)^(2t) on every problem.",
            _sublinear,
            n=5,
            exact=True,
            cells=("least squares",),
            means="For mu > 0 it has the same linear guarantee. docs/evidence/errata.md, E-DEC-3.",
        ),
        Statement(
            "halfspaces-printed",
            "Halfspaces converge linearly with the step size as printed.",
            "The direction's gap keeps (1 - mu/L)^(2t) at every step, softplus and sigmoid.",
            lambda runs: _halfspace(runs, "printed"),
            n=5,
            exact=True,
            cells=("halfspaces",),
            means="The printed h lacks a factor gamma/|w|_S; with it the theorem holds. "
            "docs/evidence/errata.md, E-DEC-6.",
        ),
        Statement(
            "halfspaces",
            "Halfspaces converge linearly with the corrected step size.",
            "The direction's gap keeps (1 - mu/L)^(2t) at every step, softplus and sigmoid.",
            lambda runs: _halfspace(runs, "corrected"),
            n=5,
            exact=True,
            cells=("halfspaces",),
        ),
        Statement(
            "network-unit",
            "A hidden unit converges linearly while the others are on the line of S^-1 u.",
            "Its gap keeps (1 - mu/L)^(2t) at every step (quadrature good to 1e-8).",
            _unit,
            n=5,
            exact=True,
            cells=("network",),
        ),
        Statement(
            "network-aligned",
            "All hidden units are on one line at every critical point.",
            "Cosines of the units with S^-1 u at joint minima above 0.9999.",
            _aligned,
            n=5,
            exact=True,
            cells=("network",),
            means="Joint minima lie off the line and below the best aligned point, a saddle. One problem, found from "
            "every seed's own start. docs/evidence/errata.md, E-DEC-9.",
        ),
    ),
    panels=_panels,
)
