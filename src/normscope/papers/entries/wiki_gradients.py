"""The encyclopedia article, "Backpropagation": six formulas for the gradients through BatchNorm."""

from typing import Any

import numpy as np

from normscope.papers.curve_statistics import top
from normscope.papers.entry import Curve, Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place

NAMES = ("normalized x", "gamma", "beta", "variance", "mean", "x")


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """Relative differences between each formula and automatic differentiation, and the mean's second term."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    errors: dict[str, list[float]] = {name: [] for name in NAMES}
    second = []
    for draw in range(settings["draws"]):
        place.tick(draw)
        m, eps = 3 + draw % 30, 10.0 ** -(draw % 5)
        x, g = (torch.randn(m, 4, generator=generator, dtype=torch.float64) for _ in range(2))
        x = (1 + 2 * x).requires_grad_()
        gamma, beta = (torch.randn(4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
        mean = x.mean(0)
        # The formulas take mean and variance as variables of their own: the variance's mean is not the mean's variable.
        variance = ((x - mean) ** 2).mean(0)
        x_hat = (x - mean) / (variance + eps).sqrt()
        loss = (g * (gamma * x_hat + beta)).sum()
        exact = torch.autograd.grad(loss, (x_hat, gamma, beta, variance, mean, x), retain_graph=True)
        centred, s = (x - mean).detach(), (variance + eps).sqrt().detach()
        d_hat = g * gamma.detach()
        d_variance = (g * centred * (-gamma.detach() / 2 * s**-3)).sum(0)
        first, rest = (g * (-gamma.detach() / s)).sum(0), d_variance * (-2 * centred).mean(0)
        d_mean = first + rest
        d_x = d_hat / s + d_variance * 2 * centred / m + d_mean / m
        formulas = (d_hat, (g * x_hat.detach()).sum(0), g.sum(0), d_variance, d_mean, d_x)
        for name, ours, theirs in zip(NAMES, formulas, exact, strict=True):
            errors[name].append(float((ours - theirs).abs().max() / theirs.abs().max()))
        second.append(float((rest.abs() / first.abs()).max()))
    return {"error": errors, "second_term": second}


FORMULAS = Experiment(
    name="gradients",
    what="the article's six backward formulas beside automatic differentiation, float64",
    settings={"paper": {"draws": 100}, "small": {"draws": 20}},
    cells={"draws": {}},
    run=run,
    seconds={("paper", "cpu"): 1.0, ("small", "cpu"): 1.0, ("paper", "cuda"): 1.0, ("small", "cuda"): 1.0},
)


def _right(runs: Runs) -> list[Part]:
    parts = []
    for name in NAMES:
        worst = top(top(curves["error"][name]) for curves in runs.of("draws").values())
        parts.append(Part(f"gradient by {name}: off by at most {worst:.1e}", worst <= 1e-10))
    return parts


def _second(runs: Runs) -> list[Part]:
    worst = top(top(curves["second_term"]) for curves in runs.of("draws").values())
    return [Part(f"the second term of the mean's gradient is at most {worst:.1e} of the first", worst <= 1e-10)]


def _panels(runs: Runs) -> list[Picture]:
    if not runs.has(("draws",)):
        return []
    lines = []
    for name in NAMES:
        rows = np.concatenate([np.array(curves["error"][name]) for curves in runs.of("draws").values()])
        rows = np.sort(np.maximum(rows, 1e-17))
        lines.append(Curve(name, list(np.linspace(0, 1, len(rows))), list(rows)))
    return [Picture("Formula against differentiation", "share of draws", "relative error", lines, log_y=True)]


ENTRY = Entry(
    name="gradients",
    title="The six backward formulas",
    source='Encyclopedia article "Batch normalization", Backpropagation',
    origin="batches of 3 to 32 samples, eps 1 to 1e-4, random gradients from above, float64",
    needs={FORMULAS: ("draws",)},
    statements=(
        Statement(
            "formulas",
            "The six formulas are the gradients through BatchNorm.",
            "Each equals automatic differentiation to 1e-10 on every draw.",
            _right,
            n=5,
            exact=True,
        ),
        Statement(
            "second-term",
            "The second term of the gradient with respect to the mean is zero (ours).",
            "At most 1e-10 of the first term on every draw.",
            _second,
            n=5,
            exact=True,
        ),
    ),
    panels=_panels,
)
