"""The encyclopedia article: small changes in shallow layers are amplified as they propagate; BatchNorm reduces that."""

from typing import Any

import numpy as np

from normscope.papers.entry import Curve, Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place

CELLS = ("none", "batch")


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """The effect of changing the first layer's weights by 1 % on each layer's numbers before the normalizer:

    change    root mean square change in units of a unit's standard deviation over the batch
    mean      mean |change of a unit's mean| in the same units

    at the initial weights and after some training.
    """
    import torch
    from torch import nn

    from normscope import data, losses, models
    from normscope.data import batches
    from normscope.training import train

    digits = data.digits(seed=seed).to(dtype=torch.float64)
    depth = settings["depth"]
    model = models.MLP(
        64, 10, width=100, depth=depth, norm=settings["norm"], init="mean_field", sigma_b2=0.0, seed=seed
    ).double()
    generator = torch.Generator().manual_seed(1000 + seed)
    noise = torch.randn(100, 64, generator=generator, dtype=torch.float64)
    linears = [layer for layer in model if isinstance(layer, nn.Linear)][:-1]
    x = digits.x_train[:512]

    @torch.no_grad()
    def preactivations() -> list[torch.Tensor]:
        model.train()
        seen, h = [], x
        for layer in model:
            h = layer(h)
            if any(layer is linear for linear in linears):
                seen.append(h)
        return seen

    @torch.no_grad()
    def moved() -> dict[str, list[float]]:
        before = preactivations()
        weight = linears[0].weight
        kept = weight.clone()
        weight += settings["size"] * weight.norm() * noise / noise.norm()
        after = preactivations()
        weight.copy_(kept)
        changes, means = [], []
        for a, b in zip(before, after, strict=True):
            s = a.std(0, correction=0).clamp_min(1e-12)
            changes.append(float(((b - a) / s).square().mean().sqrt()))
            means.append(float(((b - a).mean(0) / s).abs().mean()))
        return {"change": changes, "mean": means}

    by_moment = {"initial": moved()}
    stream = batches(digits.x_train, digits.y_train, batch_size=128, seed=seed, steps=settings["steps"])
    sgd = torch.optim.SGD(model.parameters(), lr=0.02)
    train(model, losses.cross_entropy, stream, sgd, seed=seed, on_step=place.tick)
    return by_moment | {"trained": moved()}


DEPTHS = Experiment(
    name="amplification",
    what="a change of the first layer's weights by 1 %, followed through a deep MLP on the digits",
    settings={
        "paper": {"depth": 21, "size": 0.01, "steps": 100},
        "small": {"depth": 11, "size": 0.01, "steps": 50},
    },
    cells={"none": {"norm": "none"}, "batch": {"norm": "batch"}},
    run=run,
    seconds={("paper", "cpu"): 6.0, ("small", "cpu"): 3.0, ("paper", "cuda"): 6.0, ("small", "cuda"): 3.0},
)


def _ratio(runs: Runs, cell: str, when: str) -> float:
    """Change in the last hidden layer over that in the first; geometric mean of seeds."""
    logs = [np.log(run[when]["change"][-1] / run[when]["change"][0]) for run in runs.of(cell).values()]
    return float(np.exp(np.mean(logs)))


def _amplified(runs: Runs) -> list[Part]:
    ratios = {when: _ratio(runs, "none", when) for when in ("initial", "trained")}
    return [
        Part(f"{when} weights: {ratio:.3g} times from first to last layer", ratio >= 2)
        for when, ratio in ratios.items()
    ]


def _reduced(runs: Runs) -> list[Part]:
    parts = []
    for when in ("initial", "trained"):
        none, batch = (_ratio(runs, cell, when) for cell in CELLS)
        words = f"{when} weights: {batch:.3g} times with BatchNorm, {none:.3g} without"
        parts.append(Part(words, batch < none))
    return parts


def _panels(runs: Runs) -> list[Picture]:
    if not runs.has(CELLS):
        return []
    panels = []
    for when in ("initial", "trained"):
        lines = []
        for cell in CELLS:
            curves = list(runs.of(cell).values())
            if curves:
                rows = np.array([run[when]["change"] for run in curves])
                layers = list(range(1, rows.shape[1] + 1))
                lines.append(Curve(cell, layers, list(np.median(rows, 0)), list(rows.min(0)), list(rows.max(0))))
        panels.append(
            Picture(f"{when.capitalize()} weights", "layer", "change / standard deviation", lines, log_y=True)
        )
    return panels


ENTRY = Entry(
    name="amplification",
    title="A small change in the first layer, followed upwards",
    source='Encyclopedia article "Batch normalization", Internal covariate shift',
    origin="digits, 20 hidden layers of width 100, He's weights, 100 steps at lr 0.02; first weights moved by 1 %",
    needs={DEPTHS: CELLS},
    statements=(
        Statement(
            "amplified",
            "Small changes in shallow layers are amplified on their way through the (plain) network.",
            "Change in units of the standard deviation over the batch, last / first hidden layer: at least 2, at the "
            "initial weights and after training.",
            _amplified,
            n=5,
            cells=("none",),
            means="At He's weights they grow slowly with depth; after training they do not.",
        ),
        Statement(
            "reduced",
            "BatchNorm reduces these shifts.",
            "The same ratio is smaller with BatchNorm, at the initial weights and after training.",
            _reduced,
            n=5,
            means="It is the other way round: a stack of BatchNorms makes neighbouring inputs drift apart layer by "
            "layer, as it makes gradients explode on the way back. It fixes a unit's mean and variance, not its "
            "values.",
        ),
    ),
    panels=_panels,
)
