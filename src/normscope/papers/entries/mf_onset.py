"""Ours, beside the mean-field paper: plain gradient descent on one batch turns unstable at 2/lambda, diverges later."""

from functools import partial
from typing import Any

import numpy as np

from normscope.papers.curve_statistics import spread
from normscope.papers.entry import Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place
from normscope.papers.experiments.descent import crossing, goes_above

CELLS = ("batch", "none")


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """For every gamma: eta* = 2/lambda, predicted and measured, and the rates of first rise and of divergence.

    A rise is a loss above its start, divergence one that is not finite or above 10^6 times its start, either within
    `steps` steps. Both rates are bisected, from a fifth of measured eta* on.
    """
    import torch

    from normscope import models
    from normscope.curvature import Solver, measure
    from normscope.data import batches, mnist
    from normscope.losses import half_mse
    from normscope.prediction import predict

    images = mnist(place.root)
    ((x, y),) = batches(images.x_train, images.y_train, batch_size=settings["batch_size"], seed=seed, steps=1)
    batch = (x.to(place.device), y.to(place.device))

    def network(gamma: float) -> torch.nn.Module:
        model = models.MLP(784, width=settings["width"], norm=settings["norm"], gamma=gamma, seed=seed)
        return model.to(place.device)

    names = ("predicted", "measured", "rises", "diverges")
    rates: dict[str, list[float]] = {name: [] for name in names}
    for gamma in settings["gammas"]:
        model = network(gamma)
        measured = measure(model, half_mse, batch, hessian=False, solver=Solver(tol=0.01)).eta_star
        rates["predicted"].append(predict(model.cpu(), (1, 28, 28), "half_mse", batch_size=len(x), batch=x).eta_star)
        rates["measured"].append(measured)
        rises, diverges = (
            goes_above(factor, partial(network, gamma), half_mse, [batch], steps=settings["steps"], tick=place.tick)
            for factor in (1.0, 1e6)
        )
        first = crossing(rises, measured / 5, 5 * measured, settings["decades"])
        rates["rises"].append(first)
        rates["diverges"].append(crossing(diverges, first, 30 * first, settings["decades"]))
    return {"gamma": settings["gammas"], **rates}


_GAMMAS = [0.5, 1.0, 2.0, 4.0]
ONSET = Experiment(
    name="onset",
    what="plain gradient descent on one batch of MNIST: the rates of first rise and of divergence beside 2/lambda",
    settings={
        "paper": {"width": 1000, "batch_size": 256, "steps": 40, "decades": 0.02, "gammas": _GAMMAS},
        "small": {"width": 200, "batch_size": 128, "steps": 40, "decades": 0.04, "gammas": [1.0, 4.0]},
    },
    cells={"batch": {"norm": "batch"}, "none": {"norm": "none", "gammas": [1.0]}},
    run=run,
    seconds={("paper", "cpu"): 200.0, ("small", "cpu"): 15.0, ("paper", "cuda"): 30.0, ("small", "cuda"): 15.0},
    data="mnist",
)


def _apart(runs: Runs, cell: str, of: str, line: str) -> np.ndarray:
    """log10 of a rate over another, seeds by gammas."""
    return np.array([np.log10(np.array(c[of]) / np.array(c[line])) for c in runs.of(cell).values()])


def _onset(runs: Runs, line: str) -> list[Part]:
    decades = _apart(runs, "batch", "rises", line)
    middle = float(np.median(np.abs(decades)))
    words = f"the first rise lies {np.median(decades):+.3f} decades from 2/lambda in the median ({line}), "
    return [Part(f"{words}{decades.min():+.3f} to {decades.max():+.3f} over gamma and seeds", middle <= 0.06)]


def _later(runs: Runs, cell: str, low: float, high: float) -> list[Part]:
    times = 10 ** _apart(runs, cell, "diverges", "rises")
    words = f"divergence comes at {times.min():.1f} to {times.max():.1f} times the rate of the first rise"
    return [Part(words, bool(times.min() >= low and times.max() <= high))]


def _panels(runs: Runs) -> list[Picture]:
    curves = list(runs.of("batch").values())
    if not curves:
        return []
    labels = {
        "rises": "first rise above the start",
        "diverges": "divergence",
        "measured": "2/lambda, measured",
        "predicted": "2/lambda, predicted",
    }
    lines = [spread(label, curves[0]["gamma"], [c[name] for c in curves]) for name, label in labels.items()]
    return [Picture("Plain gradient descent, one batch", "gamma", "learning rate", lines, log_x=True, log_y=True)]


ENTRY = Entry(
    name="mf-onset",
    title="eta* is the onset of instability; divergence comes later",
    source="ours, on the network of Mean-field analysis of batch normalization, Section 4",
    origin="MLP of four layers, width 1000, half squared error, one batch of 256 MNIST images, no momentum, 40 steps",
    needs={ONSET: CELLS},
    statements=(
        Statement(
            "measured",
            "With BatchNorm plain gradient descent turns unstable at 2/lambda as measured through the statistics.",
            "Size of log10(rate of first rise / 2/lambda), median over gamma and seeds: at most 0.06.",
            lambda runs: _onset(runs, "measured"),
            cells=("batch",),
            means="Both rates are bisected to 0.01 decade from measured eta* on, so that equal digits over seeds mean "
            "one step of that bisection.",
        ),
        Statement(
            "predicted",
            "The corrected theory gives the same onset without a batch's gradients.",
            "Size of log10(rate of first rise / predicted 2/lambda), median over gamma and seeds: at most 0.06.",
            lambda runs: _onset(runs, "predicted"),
            cells=("batch",),
        ),
        Statement(
            "later",
            "With BatchNorm divergence comes later than the onset, by a factor below 3.",
            "Rate of divergence over that of the first rise, every gamma and seed: between 1 and 3.",
            lambda runs: _later(runs, "batch", 1.0, 3.0),
            cells=("batch",),
            means="The factor differs from seed to seed and is largest at gamma 0.5. Beyond the first rise the loss "
            "may turn and come down again over a range of rates, as it does without BatchNorm. Under momentum and "
            "changing batches divergence follows the first rise within the grid's step (`mf-fig-2-mlp-mnist/onset`).",
        ),
        Statement(
            "much-later",
            "Without BatchNorm it comes later still, up to a factor of 5.",
            "Rate of divergence over that of the first rise, every seed: between 2 and 6.",
            lambda runs: _later(runs, "none", 2.0, 6.0),
            cells=("none",),
        ),
    ),
    panels=_panels,
)
