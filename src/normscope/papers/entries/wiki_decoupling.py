"""The encyclopedia article: BatchNorm separates the length and the direction of a unit's weights."""

from typing import Any

import numpy as np

from normscope.papers.curve_statistics import top
from normscope.papers.entry import Curve, Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """One unit BN(x^T w) with gamma, centred x, eps = 0: its reparametrization, its invariances, its gradient steps."""
    import torch

    from normscope.norms import BatchNorm1d

    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    names = ("reparametrized", "scaled", "orthogonal", "inverse")
    errors: dict[str, list[float]] = {name: [] for name in names}
    for draw in range(settings["draws"]):
        place.tick(draw)
        n, d = 40 + draw % 20, 2 + draw % 8
        x = normal(n, d) @ normal(d, d)
        x = x - x.mean(0)
        w, gamma, target = normal(d).requires_grad_(), normal(1), normal(n)
        norm = BatchNorm1d(1, eps=0.0, affine=False).double()

        def loss(w: torch.Tensor) -> torch.Tensor:
            z = gamma * norm((x @ w)[:, None])[:, 0]  # noqa: B023
            return torch.nn.functional.softplus(z * target).sum()  # noqa: B023

        with torch.no_grad():
            z = gamma * norm((x @ w)[:, None])[:, 0]
            s = x.T @ x / n
            by_hand = x @ (gamma * w / (w @ s @ w).sqrt())
            errors["reparametrized"].append(float((z - by_hand).abs().max() / by_hand.abs().max()))
        a = 0.1 + 10 * float(torch.rand((), generator=generator, dtype=torch.float64))
        (g,) = torch.autograd.grad(loss(w), w)
        scaled = (a * w.detach()).requires_grad_()
        (g_scaled,) = torch.autograd.grad(loss(scaled), scaled)
        errors["scaled"].append(abs(loss(scaled).item() / loss(w).item() - 1))
        errors["orthogonal"].append((w @ g).abs().item() / (w.norm() * g.norm()).item())
        errors["inverse"].append(float((a * g_scaled - g).abs().max() / g.abs().max()))
    return {"error": errors}


UNITS = Experiment(
    name="decoupling",
    what="one unit with BatchNorm: length-direction reparametrization and invariances, float64",
    settings={"paper": {"draws": 40}, "small": {"draws": 10}},
    cells={"units": {}},
    run=run,
    seconds={("paper", "cpu"): 1.0, ("small", "cpu"): 1.0, ("paper", "cuda"): 1.0, ("small", "cuda"): 1.0},
)


def _worst(runs: Runs, name: str, words: str) -> list[Part]:
    worst = top(top(curves["error"][name]) for curves in runs.of("units").values())
    return [Part(f"{words}: off by at most {worst:.1e}", worst <= 1e-9)]


def _panels(runs: Runs) -> list[Picture]:
    if not runs.has(("units",)):
        return []
    lines = []
    for name in ("reparametrized", "scaled", "orthogonal", "inverse"):
        rows = np.concatenate([np.array(curves["error"][name]) for curves in runs.of("units").values()])
        rows = np.sort(np.maximum(rows, 1e-17))
        lines.append(Curve(name, list(np.linspace(0, 1, len(rows))), list(rows)))
    return [Picture("Identities of one unit", "share of draws", "relative error", lines, log_y=True)]


_RULE = "On every draw to 1e-9."
ENTRY = Entry(
    name="decoupling",
    title="Length and direction of the weights",
    source='Encyclopedia article "Batch normalization", Decoupling',
    origin="random units of 2 to 9 inputs, 40 to 59 centred samples, eps = 0, float64",
    needs={UNITS: ("units",)},
    statements=(
        Statement(
            "reparametrization",
            "BatchNorm on x^T w is a linear unit with weights gamma w/|w|_S, S the covariance of x.",
            _RULE,
            lambda runs: _worst(runs, "reparametrized", "the two outputs"),
            n=5,
            exact=True,
        ),
        Statement(
            "direction-only",
            "Only the direction of w matters; its length is gamma's.",
            _RULE,
            lambda runs: _worst(runs, "scaled", "the loss at a w and at w"),
            n=5,
            exact=True,
        ),
        Statement(
            "orthogonal",
            "The gradient is orthogonal to w, and 1/a of itself at a w.",
            _RULE,
            lambda runs: [
                *_worst(runs, "orthogonal", "cosine of w and its gradient"),
                *_worst(runs, "inverse", "gradients at a w and w"),
            ],
            n=5,
            exact=True,
        ),
    ),
    panels=_panels,
)
