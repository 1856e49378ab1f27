"""Appendix A: learning rates were found by search, and the largest step is just below divergence."""

from typing import Any

import numpy as np

from normscope.papers.curve_statistics import each, spread
from normscope.papers.entry import Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place
from normscope.papers.experiments.vgg import Hits, cifar10_on

RATES = [0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.2]


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """Training accuracy over the last tenth of the steps, and where training diverged, for each learning rate."""
    import torch

    from normscope import models
    from normscope.data import batches
    from normscope.training import train

    cifar = cifar10_on(place.root, place.device)
    curves: Curves = {"rate": [], "accuracy": [], "diverged_at": []}
    for lr in settings["rates"]:
        model = place.put(models.VGG(16, width=settings["width"], norm=settings["norm"], seed=seed))
        hits, last = Hits(place.device), settings["steps"] - max(1, settings["steps"] // 10)

        def on_step(step: int, hits: Hits = hits, last: int = last) -> None:
            place.tick(step)
            if step + 1 == last:
                hits.close()

        stream = batches(cifar.x_train, cifar.y_train, batch_size=128, seed=seed, steps=settings["steps"])
        sgd = torch.optim.SGD(model.parameters(), lr=lr)
        training = train(model, hits.loss, stream, sgd, seed=seed, check_every=50, on_step=on_step, replay=True)
        diverged = training.diverged_at
        curves["rate"].append(lr)
        curves["accuracy"].append(hits.shares()[-1] if diverged is None else 0.0)
        curves["diverged_at"].append(diverged)
    return curves


SEARCH = Experiment(
    name="vgg-rates",
    what="VGG-16 on CIFAR-10 over learning rates: training accuracy of the last tenth of the steps",
    settings={
        "paper": {"width": 1.0, "steps": 3_000, "rates": RATES},
        "small": {"width": 0.25, "steps": 300, "rates": RATES},
    },
    cells={"none": {"norm": "none"}, "batch": {"norm": "batch"}},
    run=run,
    seconds={("paper", "cuda"): 200.0, ("paper", "cpu"): 41_000.0, ("small", "cpu"): 350.0, ("small", "cuda"): 30.0},
    data="cifar10",
)


def _largest(curves: Curves) -> float:
    """The largest rate such that it and all smaller ones train: twice chance at the end."""
    good = np.array(curves["accuracy"]) >= 0.2
    first_bad = int(np.argmin(good)) if not good.all() else len(good)
    return float(curves["rate"][first_bad - 1]) if first_bad else 0.0


def _edge(runs: Runs) -> list[Part]:
    largest = [_largest(curves) for curves in runs.of("none").values()]
    words = f"the plain network trains up to lr {each(largest)}"
    return [Part(words, 0.4 <= float(np.median(largest)) < 0.8)]


def _best(runs: Runs) -> list[Part]:
    parts = []
    for cell in ("none", "batch"):
        rows = np.array([curves["accuracy"] for curves in runs.of(cell).values()]).mean(0)
        rates = next(iter(runs.of(cell).values()))["rate"]
        here, best = rows[rates.index(0.1)], rows.max()
        words = f"{cell}: {here:.1%} at 0.1, at best {best:.1%} at {rates[int(rows.argmax())]:g}"
        parts.append(Part(words, bool(here >= best - 0.05)))
    return parts


def _panels(runs: Runs) -> list[Picture]:
    lines = [
        spread(cell, curves[0]["rate"], [run["accuracy"] for run in curves])
        for cell in ("none", "batch")
        for curves in (list(runs.of(cell).values()),)
        if curves
    ]
    return [Picture("Training accuracy at the end", "learning rate", "share right", lines, log_x=True)] if lines else []


ENTRY = Entry(
    name="vgg-rates",
    title="Learning rates of VGG",
    source="How Does Batch Normalization Help Optimization?, Appendices A.1 and A.2.2",
    origin="as fig-1, ten learning rates, 3,000 steps each (a fifth of a run; not stated)",
    needs={SEARCH: ("none", "batch")},
    statements=(
        Statement(
            "edge",
            "The largest step looked at, 4 x 0.1, is slightly below the rate at which the plain network diverges.",
            "Median over seeds of the largest rate at which the plain one still trains (twice chance): in [0.4, 0.8).",
            _edge,
            cells=("none",),
            scales=("paper",),
            means="From 0.3 on the plain network stands at chance in every seed but one (20 % at 0.5), and its loss is "
            "finite up to 0.8; at 1.2 two of three overflow, after 85 and 120 steps. Training ends between 0.2 and "
            "0.3 and numbers end above 0.8: 0.4 is slightly below neither. With BatchNorm every rate up to 1.2 trains.",
        ),
        Statement(
            "best",
            "0.1 is a rate of the best training performance.",
            "Mean training accuracy at lr 0.1 within 5 points of the best rate's, with and without BatchNorm.",
            _best,
            scales=("paper",),
            means="True of the plain network. With BatchNorm the training batches are learned fastest at 0.01, the "
            "least rate tried. It is the test accuracy that wants a larger one: after 15,000 steps 76 to 78 % at 0.01, "
            "84 % at 0.1 (the runs of `fig-1`).",
        ),
    ),
    panels=_panels,
)
