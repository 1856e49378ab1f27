"""The encyclopedia article: the convergence rate of the Rayleigh quotient, on which that of least squares is built."""

from typing import Any

import numpy as np

from normscope.papers.entry import Curve, Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """Steps w+ = A^-1 (B - lmin A) w on random pencils: (l1 - rho+)/(rho+ - l2) and its bound.

    With l's the eigenvalues of the pencil (B, A), and with those of B, as printed.
    """
    from scipy.linalg import eigh

    from normscope.solve.rates import rayleigh_rate

    rng = np.random.default_rng(seed)
    curves: Curves = {form: {"left": [], "right": []} for form in ("pencil", "printed")}
    for number in range(settings["pencils"]):
        place.tick(number)
        d = int(rng.integers(3, 9))
        root, b = rng.standard_normal((d, 3 * d)), rng.standard_normal((d, d))
        a, b = root @ root.T / d, b + b.T
        values = {"pencil": eigh(b, a, eigvals_only=True), "printed": np.linalg.eigvalsh(b)}
        w = rng.standard_normal(d)
        for _ in range(settings["steps"]):
            rho = (w @ b @ w) / (w @ a @ w)
            w = np.linalg.solve(a, (b - values["pencil"][0] * a) @ w)
            w /= np.linalg.norm(w)
            after = (w @ b @ w) / (w @ a @ w)
            second, first = values["pencil"][-2:]
            # The rate speaks of rho above the second eigenvalue; at the top both sides are rounding.
            if rho <= second or first - after < 1e-4 * (first - second):
                continue
            for form, own in values.items():
                curves[form]["left"].append(float((own[-1] - after) / (after - own[-2])))
                curves[form]["right"].append(rayleigh_rate(own, float(rho)))
    return curves


PENCILS = Experiment(
    name="rayleigh",
    what="one step of the Rayleigh quotient's ascent on random pencils, and the rate it is promised",
    settings={"paper": {"pencils": 60, "steps": 40}, "small": {"pencils": 20, "steps": 40}},
    cells={"pencils": {}},
    run=run,
    seconds={("paper", "cpu"): 1.0, ("small", "cpu"): 1.0, ("paper", "cuda"): 1.0, ("small", "cuda"): 1.0},
)


def _holds(runs: Runs, form: str) -> list[Part]:
    left, right = (
        np.concatenate([np.array(curves[form][side]) for curves in runs.of("pencils").values()])
        for side in ("left", "right")
    )
    inside = (left >= -1e-9) & (left <= right * (1 + 1e-5) + 1e-9)
    return [Part(f"{inside.sum()} of {len(inside)} steps keep the rate", bool(inside.all()))]


def _panels(runs: Runs) -> list[Picture]:
    if not runs.has(("pencils",)):
        return []
    lines = []
    for form in ("printed", "pencil"):
        rows = [curves[form] for curves in runs.of("pencils").values()]
        left, right = (np.concatenate([np.array(row[side]) for row in rows]) for side in ("left", "right"))
        shown = (left > 0) & (right > 0)
        label = f"{form}, a side below zero on {1 - shown.mean():.0%}"
        lines.append(Curve(label, list(right[shown]), list(left[shown]), points=True))
    ends = [1e-6, 1e3]
    lines.append(Curve("equality; points above it break the rate", ends, ends))
    return [Picture("One step", "promised", "reached", lines, log_x=True, log_y=True)]


ENTRY = Entry(
    name="rayleigh",
    title="The rate of the Rayleigh quotient",
    source='Encyclopedia article "Batch normalization", Linear convergence, Least-square problem',
    origin="random pencils (B, A) of size 3 to 8, 40 steps each, where rho is above the second eigenvalue",
    needs={PENCILS: ("pencils",)},
    statements=(
        Statement(
            "printed",
            "As printed: a step shrinks (l1 - rho)/(rho - l2) by (1 - (l1 - l2)/(l1 - lmin))^2, eigenvalues of B.",
            "On every step.",
            lambda runs: _holds(runs, "printed"),
            n=5,
            exact=True,
            means="The eigenvalues are those of the pencil (B, A). docs/evidence/errata.md, E-DEC-4.",
        ),
        Statement(
            "pencil",
            "The same with eigenvalues of the pencil (B, A).",
            "On every step.",
            lambda runs: _holds(runs, "pencil"),
            n=5,
            exact=True,
        ),
    ),
    panels=_panels,
)
