"""Mean-field paper, Figure 4: VGG16 and PreAct-ResNet18 with several initial gammas."""

from typing import Any

import numpy as np

from normscope.papers.curve_statistics import spread
from normscope.papers.entry import Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place

GAMMAS = (0.1, 0.5, 1.0, 2.0)
NETWORKS = {"vgg16": "VGG16", "resnet18": "PreAct-ResNet18"}


def cell(network: str, gamma: float) -> str:
    return f"{network}, gamma {gamma:g}"


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """Training loss of each epoch's batches, and test accuracy after the epoch."""
    import torch

    from normscope import losses, models
    from normscope.data import batches
    from normscope.papers.experiments.vgg import cifar10_on
    from normscope.training import accuracy, train

    cifar, width, gamma = cifar10_on(place.root, place.device), settings["width"], settings["gamma"]
    model: torch.nn.Module
    if settings["network"] == "vgg16":
        model = models.VGG(16, width=width, norm="batch", gamma=gamma, seed=seed)
    else:
        model = models.PreActResNet18(width=round(64 * width), norm="batch", gamma=gamma, seed=seed)
    model = place.put(model)
    x, y = cifar.x_train[: settings["images"]], cifar.y_train[: settings["images"]]
    x_test, y_test = cifar.x_test[: settings["tests"]], cifar.y_test[: settings["tests"]]
    per_epoch = len(x) // settings["batch_size"]
    training = train(
        model,
        losses.cross_entropy,
        batches(x, y, batch_size=settings["batch_size"], seed=seed, epochs=settings["epochs"]),
        torch.optim.SGD(model.parameters(), lr=settings["lr"], momentum=0.9, weight_decay=settings["weight_decay"]),
        seed=seed,
        evaluate=lambda model: {"accuracy": accuracy(model, x_test, y_test)},
        every=per_epoch,
        check_every=50,
        on_step=place.tick,
        replay=True,
    )
    means = [
        np.mean(training.losses[i * per_epoch : (i + 1) * per_epoch]) for i in range(len(training.losses) // per_epoch)
    ]
    return {
        "diverged_at": training.diverged_at,
        "train_loss": [float(mean) for mean in means],
        "test_accuracy": [evaluation["accuracy"] for evaluation in training.evaluations[1:]],
    }


_SHARED = {"batch_size": 128, "lr": 0.1, "weight_decay": 5e-4}
INITIAL = Experiment(
    name="initial-gamma",
    what="VGG16 and PreAct-ResNet18 on CIFAR-10: training loss by epoch for several initial gammas",
    settings={
        "paper": {"epochs": 15, "width": 1.0, "images": 50_000, "tests": 10_000, **_SHARED},
        "small": {"epochs": 3, "width": 0.125, "images": 2_560, "tests": 1_000, **_SHARED},
    },
    cells={cell(network, gamma): {"network": network, "gamma": gamma} for network in NETWORKS for gamma in GAMMAS},
    run=run,
    seconds={("paper", "cuda"): 40.0, ("paper", "cpu"): 12_000.0, ("small", "cpu"): 60.0, ("small", "cuda"): 8.0},
    data="cifar10",
)


def _loss(runs: Runs, network: str, gamma: float, epoch: int) -> float:
    """Training loss of one epoch (from 1 on; the last where there are fewer), mean of seeds; inf for divergence."""
    by_seed = runs.of(cell(network, gamma)).values()
    rows = [run["train_loss"] if run["diverged_at"] is None else [np.inf] for run in by_seed]
    return float(np.mean([row[min(epoch, len(row)) - 1] for row in rows]))


def _ordered(runs: Runs, network: str, epoch: int) -> list[Part]:
    losses = {gamma: _loss(runs, network, gamma, epoch) for gamma in GAMMAS}
    return [
        Part(f"gamma {low:g}: {losses[low]:.3f}, gamma {high:g}: {losses[high]:.3f}", losses[low] <= losses[high])
        for low, high in ((0.1, 1.0), (0.5, 1.0), (1.0, 2.0))
    ]


def _panels(runs: Runs) -> list[Picture]:
    panels = []
    for network, title in NETWORKS.items():
        lines = []
        for gamma in GAMMAS:
            rows = [run["train_loss"] for run in runs.of(cell(network, gamma)).values()]
            n = min(map(len, rows), default=0)
            if n:
                lines.append(spread(f"gamma {gamma:g}", list(range(1, n + 1)), [row[:n] for row in rows]))
        if lines:
            panels.append(Picture(title, "epoch", "training loss of the epoch", lines, log_y=True))
    return panels


# eta* from predict, cross-entropy, batch 128, momentum 0.9, seed 0; not stored.
MEANINGS = {
    "vgg16": "The rate of 0.1 is beyond eta* from gamma 0.5 on: by theory eta* is 0.13, 0.0054, 0.0012 and 0.0004 at "
    "gamma 0.1, 0.5, 1 and 2.",
    "resnet18": "Gamma 0.1 is slower than 0.5 and 1 in every epoch of every seed; 0.5 is ahead of 1 for three epochs "
    "and level with it from the fifth on. Theory says why there is nothing to gain: eta* is 12.7, 1.2, 0.24 and 0.045 "
    "at gamma 0.1, 0.5, 1 and 2, so that the rate of 0.1 is within the limit for the first three, and beyond it, where "
    "a smaller gamma helps, for gamma 2 alone. VGG16 has 0.13, 0.0054, 0.0012 and 0.0004: there each smaller gamma "
    "brings the rate nearer to the limit. That a gamma below need slows training down, its steps being small beside "
    "the limit, is a conjecture.",
}


def _statements(network: str, title: str) -> tuple[Statement, Statement]:
    cells = [cell(network, gamma) for gamma in GAMMAS]
    words = f"{title}: smaller initial gamma converges faster"
    return (
        Statement(
            f"{network}-early",
            f"{words}, early in training.",
            "Training loss in the second epoch, mean of seeds: gamma 0.1 and 0.5 at most that of 1, which is at most "
            "that of 2.",
            lambda runs: _ordered(runs, network, 2),
            cells=cells,
            means=MEANINGS[network],
        ),
        Statement(
            f"{network}-late",
            f"{words}, to the end of training.",
            "Training loss in the last epoch, mean of seeds: gamma 0.1 and 0.5 at most that of 1, which is at most "
            "that of 2.",
            lambda runs: _ordered(runs, network, 10**6),
            cells=cells,
            means=f"{MEANINGS[network]} The order of the test accuracies after 15 epochs is another one, and differs "
            "from seed to seed.",
        ),
    )


ENTRY = Entry(
    name="mf-fig-4",
    title="Small initial gamma and the speed of convergence",
    source="Mean-field analysis of batch normalization, Figure 4 and Section 6.5",
    origin="CIFAR-10, lr 0.1, momentum 0.9, weight decay 5e-4 (the source's); batch 128, 15 epochs, no augmentation "
    "and cross-entropy are ours",
    needs={INITIAL: tuple(INITIAL.cells)},
    statements=tuple(one for network, title in NETWORKS.items() for one in _statements(network, title)),
    panels=_panels,
)
