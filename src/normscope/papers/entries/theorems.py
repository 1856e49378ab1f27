"""Theorems 4.1, 4.2, 4.4, C.1, Lemma 4.5, Observation 4.3 and the facts behind them, as printed and as corrected.

Random layers in float64: batch size, inputs, weights, gamma and the loss behind the layer are drawn; `bounds.check`
gives both sides, the left by differentiation. A statement is exact: one draw that breaks it decides.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from normscope.papers.entry import Curve, Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place

TOLERANCE = 1e-9
DIGITS = 1e-5


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    import torch
    from torch import nn
    from torch.nn import functional as F

    from normscope.bounds import check

    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sides: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"left": [], "right": [], "error": []})
    for draw in range(settings["draws"]):
        place.tick(draw)
        m, d_in = int(uniform(4, 25)), int(uniform(2, 9))
        linear = nn.Linear(d_in, settings["units"], dtype=torch.float64)
        norm = nn.BatchNorm1d(settings["units"], dtype=torch.float64)
        first = normal(settings["units"], d_in)
        with torch.no_grad():
            linear.weight.copy_(normal(settings["units"], d_in))
            linear.bias.copy_(normal(settings["units"]))
            norm.weight.fill_(uniform(0.1, 3.0))
        x, a, size = normal(m, d_in), normal(m, settings["units"]), 10 ** uniform(-2, 1)

        def loss(z: torch.Tensor, loss_number: int = draw % 4, a: torch.Tensor = a, size: float = size) -> torch.Tensor:
            values = (
                ((a * z) ** 2).sum() + z.sum() ** 2,
                F.softplus(a * z + z.roll(1, 0)).sum(),
                torch.logsumexp(a * z, 0).sum(),
                (a * z**3).sum() + (z[:-1] * z[1:] ** 2).sum(),
            )
            return size * values[loss_number]

        bounds = check(linear, norm, x, loss, w0=first + 0.5 * linear.weight.detach())
        for row in bounds.rows:
            if row.applies:
                kept = sides[f"{row.statement}, {row.form}"]
                kept["left"].append(row.left)
                kept["right"].append(row.right)
                kept["error"].append(row.error)
    return dict(sides)


LAYERS = Experiment(
    name="theorems",
    what="both sides of the theorems of Santurkar et al. 2018 on random layers, float64",
    settings={"paper": {"draws": 40, "units": 2}, "small": {"draws": 8, "units": 2}},
    cells={"layers": {}},
    run=run,
    seconds={("paper", "cpu"): 10.0, ("small", "cpu"): 2.0, ("paper", "cuda"): 10.0, ("small", "cuda"): 2.0},
)


def _judge(statement: str, relation: str) -> Callable[[Runs], Sequence[Part]]:
    def judge(runs: Runs) -> list[Part]:
        rows = [curves[statement] for curves in runs.of("layers").values()]
        left, right, error = (
            np.concatenate([np.array(row[name]) for row in rows]) for name in ("left", "right", "error")
        )
        # `error` belongs to vectors and is relative to their terms, so it cannot be computed from the sides; the sides
        # decide within their six digits. A nan fulfils no relation.
        near = np.abs(left - right) <= DIGITS * np.maximum(np.abs(left), np.abs(right))
        equal = (error <= TOLERANCE) & near
        broken = ~equal if relation == "=" else ~(equal | (left <= right))
        words = f"{len(left) - broken.sum()} of {len(left)} draws hold"
        if relation == "=":
            words += f", the largest relative error is {error.max():.1e}"
        if broken.any():
            worst = int(np.argmax(np.where(broken, error, 0)))
            words += f"; a counterexample: left {left[worst]:.4g}, right {right[worst]:.4g}"
        return [Part(words, not broken.any())]

    return judge


def _statement(key: str, row: str, relation: str, words: str, means: str = "") -> Statement:
    within = "the two sides agree to 1e-9 (relative to their terms)" if relation == "=" else "left <= right"
    rule = f"On every one of the random layers {within}."
    return Statement(key, words, rule, _judge(row, relation), exact=True, means=means)


_MISPRINT = (
    "A misprint or slip of the derivation, not of the idea: the corrected form holds. docs/evidence/errata.md, {}."
)
_STATEMENTS = (
    _statement(
        "gradient-bound-printed", "Theorem 4.1, printed", "<=",
        "Theorem 4.1 as printed: |d|^2 <= (gamma^2/s^2)(|g|^2 - <1,g>^2/m - <g,yh>^2/sqrt(m)).",
        _MISPRINT.format("E-THM-1"),
    ),
    _statement(
        "gradient-bound", "Theorem 4.1, corrected", "=",
        "Theorem 4.1 with 1/m at the last term, an equality.",
    ),
    _statement(
        "hessian-printed", "Hessian (41), (42), printed", "=",
        "The Hessian through BatchNorm, (41) and (42), as the second version of the appendix prints it.",
        _MISPRINT.format("E-THM-2"),
    ),
    _statement("hessian", "Hessian (41), (42), corrected", "=", "The Hessian through BatchNorm with the bar put back."),
    _statement(
        "curvature", "Theorem 4.2, part 1, printed", "<=",
        "Theorem 4.2, first part: the curvature along d is at most (gamma^2/s^2) d^T H d minus a term in <g,yh>.",
        "It is an equality.",
    ),
    _statement("curvature-equality", "Theorem 4.2, part 1, corrected", "=", "The same as an equality, (50)."),
    _statement(
        "curvature-second-printed", "Theorem 4.2, part 2, printed", "<=",
        "Theorem 4.2, second part: the same with g^T H g in the place of d^T H d, without a condition.",
        "It needs d^T H d <= g^T H g, which large gamma/s breaks. docs/evidence/errata.md, E-THM-3.",
    ),
    _statement(
        "curvature-second", "Theorem 4.2, part 2, corrected", "<=",
        "The second part where d^T H d <= g^T H g.",
    ),
    _statement(
        "minimax-printed", "Theorem 4.4, printed", "<=",
        "Theorem 4.4 as printed: the largest gradient with respect to the weights over all inputs of norm lam.",
        _MISPRINT.format("E-THM-4"),
    ),
    _statement("minimax", "Theorem 4.4, corrected", "=", "Theorem 4.4 with lam^2 and 1/m in place, an equality."),
    _statement(
        "weights-hessian", "Theorem C.1, (54) and (56), both", "=",
        "Theorem C.1, its exact part: the weights' Hessian is X^T Hh X.",
    ),
    _statement(
        "weights-hessian-maximum", "Theorem C.1, (58), lam = 1, printed", "<=",
        "Theorem C.1, (58): the maximum over inputs of norm lam is lam^4 d^T Hh d.",
        "X X^T d runs through a ball, and the maximum lies elsewhere in it. docs/evidence/errata.md, E-THM-5.",
    ),
    _statement(
        "initialisation", "Lemma 4.5, printed", "<=",
        "Lemma 4.5: for <W0, W*> > 0 some optimum of the BatchNorm network is nearer to W0 than W* is.",
    ),
    _statement("initialisation-equality", "Lemma 4.5, corrected", "=", "Lemma 4.5 for k W*, an equality."),
    _statement(
        "same-activations", "Observation 4.3, both", "=",
        "Observation 4.3: some gamma and beta give the activations of the network without BatchNorm.",
    ),
    _statement("facts", "Fact C.1, both", "=", "Fact C.1: the gradient through BatchNorm in closed form."),
    _statement("facts-jacobian", "Fact C.2, both", "=", "Fact C.2: the Jacobian of BatchNorm in closed form."),
)  # fmt: skip


def _panels(runs: Runs) -> list[Picture]:
    if not runs.has(("layers",)):
        return []
    panels = []
    for title, names in (
        ("Theorem 4.1", ("Theorem 4.1, printed", "Theorem 4.1, corrected")),
        ("Theorem 4.4", ("Theorem 4.4, printed", "Theorem 4.4, corrected")),
        ("Theorem C.1, (58)", ("Theorem C.1, (58), lam = 1, printed",)),
    ):
        lines = []
        for name in names:
            rows = [curves[name] for curves in runs.of("layers").values()]
            left, right = (np.concatenate([np.array(row[side]) for row in rows]) for side in ("left", "right"))
            shown = (left > 0) & (right > 0)
            label = f"{name.rpartition(', ')[2]}, right side below zero on {np.mean(right <= 0):.0%}"
            lines.append(Curve(label, list(left[shown]), list(right[shown]), points=True))
        ends = [min(min(line.x) for line in lines), max(max(line.x) for line in lines)]
        lines.append(Curve("equality; points below it break the bound", ends, ends))
        panels.append(Picture(title, "left side", "right side", lines, log_x=True, log_y=True))
    return panels


ENTRY = Entry(
    name="theorems",
    title="The theorems about one BatchNorm layer",
    source="How Does Batch Normalization Help Optimization?, Section 4 and Appendix C",
    origin="random layers: 4 to 24 samples, 2 to 8 inputs, gamma 0.1 to 3, four losses of sizes 0.01 to 10; eps = 0",
    needs={LAYERS: ("layers",)},
    statements=_STATEMENTS,
    panels=_panels,
)
