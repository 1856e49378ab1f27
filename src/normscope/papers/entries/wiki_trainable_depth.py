"""Trainable depth: deep BatchNorm networks stop training at about 16 xi layers; skip connections help."""

from typing import Any

import numpy as np

from normscope.papers.curve_statistics import each, spread
from normscope.papers.entry import Curve, Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place
from normscope.theory.explosion import explosion

BATCH = 128
# Three times chance.
TRAINS = 0.3


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """Test accuracy, statistics of the batch, by depth."""
    import math

    import torch
    from torch import Tensor, nn

    from normscope import losses, norms
    from normscope.data import batches, mnist
    from normscope.training import accuracy, train

    images = mnist(place.root).to(place.device)
    width = settings["width"]

    class Stack(nn.Module):
        """x -> linear -> (linear, BatchNorm, ReLU) `depth` times, skipped or not -> linear."""

        def __init__(self, depth: int) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(seed)
            self.first, self.last = nn.Linear(784, width, bias=False), nn.Linear(width, 10)
            self.linears = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
            self.norms = nn.ModuleList(norms.BatchNorm1d(width, eps=1e-3) for _ in range(depth))
            with torch.no_grad():
                for layer in (self.first, *self.linears, self.last):
                    shape = layer.weight.shape
                    layer.weight.copy_(torch.randn(shape, generator=generator) / math.sqrt(shape[1]))
                self.last.bias.zero_()

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x.flatten(1))
            for linear, norm in zip(self.linears, self.norms, strict=True):
                new = torch.relu(norm(linear(h)))
                h = h + new if settings["skip"] else new
            return self.last(h)

    curves: Curves = {"depth": settings["depths"], "accuracy": [], "diverged_at": []}
    for depth in settings["depths"]:
        model = Stack(depth).to(place.device)
        stream = batches(images.x_train, images.y_train, batch_size=BATCH, seed=seed, epochs=settings["epochs"])
        sgd = torch.optim.SGD(model.parameters(), lr=settings["lr"])
        done = train(
            model, losses.cross_entropy, stream, sgd, seed=seed, check_every=20, on_step=place.tick, replay=True
        )
        model.eval()
        curves["accuracy"].append(accuracy(model, images.x_test, images.y_test) if done.diverged_at is None else 0.1)
        curves["diverged_at"].append(done.diverged_at)
    return curves


_SHARED = {"lr": 1e-5 * BATCH, "skip": False, "depths": [5, 10, 20, 30, 40, 60, 80, 100]}
STACKS = Experiment(
    name="trainable-depth",
    what="stacks of linear map, BatchNorm and ReLU on MNIST: test accuracy by depth",
    settings={
        "paper": {"width": 384, "epochs": 10, **_SHARED},
        "small": {"width": 128, "epochs": 1, **_SHARED},
    },
    cells={"plain": {}, "skip": {"skip": True, "depths": [40, 80, 160]}},
    run=run,
    seconds={("paper", "cpu"): 3000.0, ("small", "cpu"): 120.0, ("paper", "cuda"): 700.0, ("small", "cuda"): 80.0},
    data="mnist",
)


def _edge(curves: Curves) -> float:
    """Depth at which the accuracy falls below three times chance, between the depths tried; inf if it never does."""
    depth, right = curves["depth"], curves["accuracy"]
    for i, share in enumerate(right):
        if share < TRAINS:
            if i == 0:
                return float(depth[0])
            part = (right[i - 1] - TRAINS) / (right[i - 1] - share)
            return float(depth[i - 1] + part * (depth[i] - depth[i - 1]))
    return float("inf")


def _limit(runs: Runs) -> list[Part]:
    xi = explosion("relu", BATCH).xi
    edges = [_edge(curves) for curves in runs.of("plain").values()]
    edge = float(np.median(edges))
    words = f"training ends at {each(edges, '.0f')} layers, {edge / xi:.1f} xi in the median (xi = {xi:.2f})"
    return [Part(words, 8 <= edge / xi <= 32)]


def _skip(runs: Runs) -> list[Part]:
    edge = float(np.median([_edge(curves) for curves in runs.of("plain").values()]))
    rows = np.array([curves["accuracy"] for curves in runs.of("skip").values()]).mean(0)
    depths = next(iter(runs.of("skip").values()))["depth"]
    deep = [(d, a) for d, a in zip(depths, rows, strict=True) if d >= 2 * edge]
    if not deep:
        return [Part(f"no depth tried is twice {edge:.0f}", False)]
    return [Part(f"{d} layers with skip connections reach {a:.1%}", bool(a >= TRAINS)) for d, a in deep]


def _panels(runs: Runs) -> list[Picture]:
    if not runs.has(("plain",)):
        return []
    lines = []
    for cell in ("plain", "skip"):
        curves = list(runs.of(cell).values())
        if curves:
            lines.append(spread(cell, curves[0]["depth"], [run["accuracy"] for run in curves]))
    limit = explosion("relu", BATCH).trainable_depth
    lines.append(Curve(f"16 xi = {limit:.0f}", [limit, limit], [0.0, 1.0]))
    return [Picture("Test images", "layers", "share right", lines)]


ENTRY = Entry(
    name="trainable-depth",
    title="Trainable depth on MNIST",
    source='Encyclopedia article "Batch normalization", Vanishing/exploding gradients; Yang et al. 2019, Figure 2',
    origin="width 384, 10 epochs (small: 128, 1 epoch), batch 128, SGD lr 1e-5 x 128, eps 1e-3 (Yang et al.)",
    needs={STACKS: ("plain", "skip")},
    statements=(
        Statement(
            "16-xi",
            "Deep BatchNorm networks train up to about 16 xi layers, xi = 1/log(growth of the squared gradient).",
            "Test accuracy falls below 30 % between 8 xi and 32 xi, median of seeds.",
            _limit,
            cells=("plain",),
            means="About 16 xi is 41 layers; there the stacks still reach 89 to 90 %, at 60 layers 14 to 52 %, at "
            "80 chance. So the limit is nearer to 26 xi here than to 16, within the factor of two that the rule "
            "allows. It grows with training: at small scale, one epoch at width 128, it is 16 to 17 layers, 6 xi.",
        ),
        Statement(
            "skip",
            "Skip connections cure it.",
            "At every tried depth of at least twice the plain network's limit they reach 30 %.",
            _skip,
            means="Of the depths tried, 160 layers alone are beyond twice the limit; 80, beyond the limit itself, "
            "reach 95 %.",
        ),
    ),
    panels=_panels,
)
