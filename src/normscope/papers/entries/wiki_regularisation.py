"""The encyclopedia article: BatchNorm regularises, and makes dropout unnecessary."""

from typing import Any

import numpy as np

from normscope.papers.curve_statistics import Array, mean_sd, of_each, spread
from normscope.papers.entry import Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place

CELLS = ("none", "batch", "none, dropout", "batch, dropout")


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    import torch
    from torch import nn

    from normscope import data, losses, models
    from normscope.data import batches
    from normscope.training import accuracy, train

    digits = data.digits(seed=seed)
    x, y = digits.x_train[: settings["images"]], digits.y_train[: settings["images"]]
    layers: list[nn.Module] = []
    for layer in models.MLP(64, 10, width=200, depth=4, norm=settings["norm"], init="glorot", seed=seed):
        layers.append(layer)
        if isinstance(layer, nn.ReLU) and settings["dropout"]:
            layers.append(nn.Dropout(settings["dropout"]))
    model = nn.Sequential(*layers)

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {
            "train_accuracy": accuracy(model, x, y),
            "test_accuracy": accuracy(model, digits.x_test, digits.y_test),
            "test_loss": float(losses.cross_entropy(model(digits.x_test), digits.y_test)),
        }

    stream = batches(x, y, batch_size=50, seed=seed, steps=settings["steps"])
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    every = settings["steps"] // 10
    training = train(
        model, losses.cross_entropy, stream, sgd, seed=seed, evaluate=evaluate, every=every, on_step=place.tick
    )
    return {name: [evaluation[name] for evaluation in training.evaluations] for name in training.evaluations[0]}


SMALL_SET = Experiment(
    name="regularisation",
    what="MLP on few digits: test accuracy with and without BatchNorm and dropout",
    settings={"paper": {"images": 200, "steps": 600}, "small": {"images": 200, "steps": 300}},
    cells={
        "none": {"norm": "none", "dropout": 0.0},
        "batch": {"norm": "batch", "dropout": 0.0},
        "none, dropout": {"norm": "none", "dropout": 0.5},
        "batch, dropout": {"norm": "batch", "dropout": 0.5},
    },
    run=run,
    seconds={("paper", "cpu"): 2.0, ("small", "cpu"): 1.0, ("paper", "cuda"): 4.0, ("small", "cuda"): 2.0},
)


def _test(runs: Runs, cell: str) -> Array:
    return of_each(runs.of(cell), lambda curves: float(curves["test_accuracy"][-1]))


def _gain(better: Array, worse: Array) -> tuple[float, float]:
    """Mean difference, seed by seed, and its standard error."""
    difference = better - worse
    return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))


def _regularises(runs: Runs) -> list[Part]:
    none, batch = _test(runs, "none"), _test(runs, "batch")
    gain, error = _gain(batch, none)
    words = f"test accuracy {mean_sd(batch)} with BatchNorm, {mean_sd(none)} without: {100 * gain:+.2f} points"
    return [Part(f"{words} (standard error {100 * error:.2f})", gain > 2 * error)]


def _needless(runs: Runs) -> list[Part]:
    batch, both, dropout = (_test(runs, cell) for cell in ("batch", "batch, dropout", "none, dropout"))
    gain, error = _gain(both, batch)
    against, against_error = _gain(batch, dropout)
    return [
        Part(
            f"dropout adds {100 * gain:+.2f} points to BatchNorm (standard error {100 * error:.2f})", gain <= 2 * error
        ),
        Part(
            f"BatchNorm alone is {100 * against:+.2f} points from dropout alone ({100 * against_error:.2f})",
            against >= -2 * against_error,
        ),
    ]


def _panels(runs: Runs) -> list[Picture]:
    if not runs.has(CELLS):
        return []
    lines = []
    for cell in CELLS:
        curves = list(runs.of(cell).values())
        if curves:
            lines.append(spread(cell, curves[0]["step"], [run["test_accuracy"] for run in curves]))
    return [Picture("200 training images", "step", "test accuracy", lines)]


ENTRY = Entry(
    name="regularisation",
    title="BatchNorm as a regulariser",
    source='Encyclopedia article "Batch normalization", Internal covariate shift',
    origin="200 digits, four linear layers of width 200, SGD lr 0.1, batch 50, 600 steps; dropout 0.5 after each ReLU",
    needs={SMALL_SET: CELLS},
    statements=(
        Statement(
            "regularises",
            "BatchNorm improves generalisation.",
            "Test accuracy higher with BatchNorm by more than two standard errors of the seeds' differences.",
            _regularises,
            n=10,
            cells=("none", "batch"),
            means="On 200 digits the difference is within the seeds' spread. One small task, and no more than that; "
            "fig-1/better asks the same of VGG.",
        ),
        Statement(
            "dropout-needless",
            "With BatchNorm dropout is not needed against overfitting.",
            "Dropout adds at most two standard errors to BatchNorm's test accuracy, and BatchNorm alone is at most two "
            "standard errors below dropout alone.",
            _needless,
            n=10,
            means="Here dropout helps a network with BatchNorm more than BatchNorm helps.",
        ),
    ),
    panels=_panels,
)
