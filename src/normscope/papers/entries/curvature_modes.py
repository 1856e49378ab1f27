"""Ours: curvature through training as trained, with statistics held constant, and in eval mode as other tools do."""

from typing import Any

import numpy as np

from normscope.papers.curve_statistics import each, spread
from normscope.papers.entry import Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place

CELLS = {"vgg11": "VGG-11", "resnet18": "PreAct-ResNet18"}
STATISTICS = ("batch", "frozen", "running")


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """lambda_max of the Gauss-Newton matrix with three kinds of batch statistics, at some steps, on one fixed batch."""
    import torch

    from normscope import losses, models
    from normscope.curvature import Solver, measure
    from normscope.data import batches
    from normscope.papers.experiments.vgg import cifar10_on
    from normscope.training import train

    cifar, m = cifar10_on(place.root, place.device), settings["batch_size"]
    model: torch.nn.Module
    if settings["network"] == "vgg11":
        model = models.VGG(11, width=settings["width"], norm="batch", seed=seed)
    else:
        model = models.PreActResNet18(width=round(64 * settings["width"]), norm="batch", seed=seed)
    model = place.put(model)
    looked_at = (cifar.x_train[:m], cifar.y_train[:m])
    stream = batches(cifar.x_train, cifar.y_train, batch_size=m, seed=seed)
    sgd = torch.optim.SGD(model.parameters(), lr=settings["lr"], momentum=0.9)
    lambdas: dict[str, list[float]] = {name: [] for name in STATISTICS}
    steps: list[int] = []
    for step in settings["measured_at"]:
        done = steps[-1] if steps else 0
        if step > done:
            train(
                model, losses.cross_entropy, stream, sgd, steps=step - done, seed=seed,
                check_every=50, on_step=place.tick, replay=True,
            )  # fmt: skip
        steps.append(step)
        for name in STATISTICS:
            place.tick(step)
            looked = measure(model, losses.cross_entropy, looked_at, stats=name, hessian=False, solver=Solver(tol=0.01))
            lambdas[name].append(looked.lambda_max)
    return {"step": steps, **lambdas}


MODES = Experiment(
    name="curvature-modes",
    what="lambda_max of VGG-11 and PreAct-ResNet18 through training: as trained, statistics constant, eval mode",
    settings={
        "paper": {"width": 1.0, "batch_size": 128, "lr": 0.05, "measured_at": [0, 50, 100, 200, 400, 800, 1600, 3200]},
        "small": {"width": 0.125, "batch_size": 64, "lr": 0.05, "measured_at": [0, 20, 60]},
    },
    cells={cell: {"network": cell} for cell in CELLS},
    run=run,
    seconds={("paper", "cuda"): 40.0, ("paper", "cpu"): 8_000.0, ("small", "cpu"): 60.0, ("small", "cuda"): 20.0},
    data="cifar10",
)


def _ratios(runs: Runs, cell: str, name: str) -> np.ndarray:
    """lambda_max with other statistics over lambda_max as trained: seeds by snapshots."""
    return np.array([np.array(c[name]) / np.array(c["batch"]) for c in runs.of(cell).values()])


def _frozen(runs: Runs) -> list[Part]:
    parts = []
    for cell, title in CELLS.items():
        middle = np.median(_ratios(runs, cell, "frozen"), axis=1)
        words = f"{title}: {each(list(middle), '.2f')} times the curvature as trained (median over snapshots, by seed)"
        parts.append(Part(words, bool(middle.min() >= 1.2)))
    return parts


def _running(runs: Runs) -> list[Part]:
    parts = []
    for cell, title in CELLS.items():
        ratios = _ratios(runs, cell, "running")[:, 1:]
        off = np.exp(np.median(np.abs(np.log(ratios)), axis=1))
        factors = each(list(off), ".2f")
        words = f"{title}: off by a factor of {factors} (median over snapshots after the first, by seed), "
        parts.append(Part(f"{words}{ratios.min():.2g} to {ratios.max():.2g} of it in all", bool(off.min() >= 1.2)))
    return parts


def _initial(runs: Runs) -> list[Part]:
    parts = []
    for cell, title in CELLS.items():
        first = _ratios(runs, cell, "running")[:, 0]
        words = f"{title}: before training eval mode says {each(list(first), '.2g')} times the curvature as trained"
        parts.append(Part(words, bool((np.abs(np.log(first)) >= np.log(2)).all())))
    return parts


def _panels(runs: Runs) -> list[Picture]:
    labels = {"batch": "as trained", "frozen": "statistics held constant", "running": "eval mode"}
    panels = []
    for cell, title in CELLS.items():
        curves = list(runs.of(cell).values())
        if curves:
            steps = [step + 1 for step in curves[0]["step"]]
            lines = [spread(labels[name], steps, [c[name] for c in curves]) for name in STATISTICS]
            panels.append(Picture(title, "step + 1", "lambda_max", lines, log_x=True, log_y=True))
    return panels


ENTRY = Entry(
    name="curvature-modes",
    title="Three curvatures of a BatchNorm network",
    source="ours",
    origin="CIFAR-10, cross-entropy, SGD lr 0.05, momentum 0.9, batch 128; Gauss-Newton matrix on one training batch",
    needs={MODES: tuple(CELLS)},
    statements=(
        Statement(
            "frozen",
            "With the batch's statistics held constant the curvature is larger than what is trained on.",
            "lambda_max with constant statistics at least 1.2 times that as trained, median over snapshots, in every "
            "seed of both networks.",
            _frozen,
        ),
        Statement(
            "eval-mode",
            "In eval mode, where tools measure that cannot differentiate through the statistics, it is another number.",
            "lambda_max in eval mode off by a factor of at least 1.2, median over snapshots after the first, in every "
            "seed of both networks.",
            _running,
        ),
        Statement(
            "before-training",
            "Before training eval mode says nothing about the network that is trained.",
            "lambda_max in eval mode off by a factor of at least 2 at step 0, in every seed of both networks.",
            _initial,
        ),
    ),
    panels=_panels,
)
