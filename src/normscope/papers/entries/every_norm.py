"""Ours: the same report for every normalizer: eta*, where plain gradient descent turns unstable, and the landscape."""

import math
from typing import Any

import numpy as np

from normscope.papers.curve_statistics import band_lines, each
from normscope.papers.entry import Curve, Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place
from normscope.papers.experiments.descent import crossing, goes_above

NORMS = ("none", "batch", "layer", "group", "rms", "l1", "l2", "linf")
# Normalizers that the theory has kernel maps for.
KNOWN = ("none", "batch", "layer", "group", "rms")


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """eta* = 2/lambda predicted and measured on one batch, the rate of first rise there, and a landscape at eta*/2."""
    import torch

    from normscope import data, models
    from normscope.curvature import Solver, measure
    from normscope.data import batches
    from normscope.losses import half_mse
    from normscope.monitor import VGG_FACTORS, LandscapeProbe, Monitor
    from normscope.prediction import predict
    from normscope.training import train

    digits, norm = data.digits(seed=seed).to(place.device), settings["norm"]
    m = settings["batch_size"]
    x, y = digits.x_train[:m], digits.y_train[:m]

    def network() -> torch.nn.Module:
        return models.MLP(64, width=settings["width"], norm=norm, seed=seed).to(place.device)

    rises = goes_above(1.0, network, half_mse, [(x, y)], steps=settings["steps"], tick=place.tick)
    measured = measure(network(), half_mse, (x, y), hessian=False, solver=Solver(tol=0.01)).eta_star
    predicted = math.nan
    if norm in KNOWN:
        predicted = predict(network().cpu(), tuple(x.shape[1:]), "half_mse", batch_size=m, batch=x.cpu()).eta_star
    model = network()
    monitor = Monitor(
        model, half_mse, every=settings["snapshot_every"], measure=[LandscapeProbe(VGG_FACTORS)], budget=None
    )
    stream = batches(digits.x_train, digits.y_train, batch_size=128, seed=seed, steps=settings["train"])
    sgd = torch.optim.SGD(model.parameters(), lr=measured / 2)
    train(model, half_mse, stream, sgd, seed=seed, monitor=monitor, on_step=place.tick)
    landscapes = [record.results["landscape"] for record in monitor.records]
    bands = [landscape.band for landscape in landscapes]
    return {
        "predicted": predicted,
        "measured": measured,
        "rises": crossing(rises, measured / 5, 5 * measured, 0.02),
        "step": [record.step for record in monitor.records],
        "loss": [landscape.loss for landscape in landscapes],
        "loss_min": [low for low, _ in bands],
        "loss_max": [high for _, high in bands],
        "change_max": [max(landscape.changes) for landscape in landscapes],
        "beta": [landscape.beta for landscape in landscapes],
    }


EVERY = Experiment(
    name="every-norm",
    what="fully connected network on the digits with every normalizer: eta*, onset of instability and landscape",
    settings={
        "paper": {"width": 500, "batch_size": 256, "steps": 40, "train": 200, "snapshot_every": 20},
        "small": {"width": 200, "batch_size": 128, "steps": 40, "train": 60, "snapshot_every": 20},
    },
    cells={norm: {"norm": norm} for norm in NORMS},
    run=run,
    seconds={("paper", "cpu"): 30.0, ("small", "cpu"): 8.0, ("paper", "cuda"): 15.0, ("small", "cuda"): 10.0},
)


def _numbers(runs: Runs, norm: str, name: str) -> np.ndarray:
    by_seed = runs.of(norm)
    return np.array([by_seed[seed][name] for seed in sorted(by_seed)], dtype=float)


def _decades(runs: Runs, norm: str, of: str, line: str) -> float:
    return float(np.median(np.log10(_numbers(runs, norm, of) / _numbers(runs, norm, line))))


def _onset(runs: Runs) -> list[Part]:
    decades = {norm: _decades(runs, norm, "rises", "measured") for norm in NORMS}
    return [
        Part(f"{norm}: first rise {apart:+.2f} decades from 2/lambda", abs(apart) <= 0.1)
        for norm, apart in decades.items()
    ]


def _theory(runs: Runs) -> list[Part]:
    decades = {norm: _decades(runs, norm, "predicted", "measured") for norm in KNOWN}
    return [
        Part(f"{norm}: predicted eta* {apart:+.2f} decades from measured", abs(apart) <= 0.1)
        for norm, apart in decades.items()
    ]


def _larger(runs: Runs) -> list[Part]:
    plain = _numbers(runs, "none", "measured")
    return [
        Part(f"{norm}: eta* {each(ratio, '.1f')} times the plain network's", bool((ratio > 1).all()))
        for norm in NORMS[1:]
        for ratio in (_numbers(runs, norm, "measured") / plain,)
    ]


def _batch(runs: Runs) -> list[Part]:
    batch = _numbers(runs, "batch", "measured")
    return [
        Part(f"eta* with BatchNorm is {each(ratio, '.1f')} times that with {norm}", bool((ratio > 1).all()))
        for norm in ("layer", "group", "rms")
        for ratio in (batch / _numbers(runs, norm, "measured"),)
    ]


def _panels(runs: Runs) -> list[Picture]:
    if not runs.has(NORMS):
        return []
    places = list(range(1, 1 + len(NORMS)))
    names = {"measured": "2/lambda, measured", "rises": "first rise", "predicted": "2/lambda, predicted"}
    lines = []
    for name, label in names.items():
        values = [float(np.median(_numbers(runs, norm, name))) for norm in NORMS]
        known = [(place, value) for place, value in zip(places, values, strict=True) if not math.isnan(value)]
        lines.append(Curve(label, [place for place, _ in known], [value for _, value in known], points=True))
    said = ", ".join(f"{place} {norm}" for place, norm in zip(places, NORMS, strict=True))
    panels = [Picture("Largest stable learning rate", said, "learning rate", lines, log_y=True)]
    for title, norms in (("Loss along the gradient", NORMS[:4]), ("Loss along the gradient, the others", NORMS[4:])):
        panels.append(Picture(title, "step", "loss", band_lines(runs, norms, "loss_min", "loss_max"), log_y=True))
    return panels


def _table(runs: Runs) -> list[list[str]]:
    if not runs.has(NORMS):
        return []
    rows = [["normalizer", "eta* predicted", "eta* measured", "first rise", "beta, median over training", "n"]]
    for norm in NORMS:
        numbers = [float(np.median(_numbers(runs, norm, name))) for name in ("predicted", "measured", "rises")]
        beta = float(np.median(_numbers(runs, norm, "beta")))
        said = ["none" if math.isnan(number) else f"{number:.3g}" for number in (*numbers, beta)]
        rows.append([norm, *said, str(len(runs.of(norm)))])
    return rows


ENTRY = Entry(
    name="every-norm",
    title="Every normalizer, the same report",
    source="ours",
    origin="digits, fully connected, width 500, four layers, mean-field weights, half squared error, plain gradient "
    "descent on one batch of 256; landscapes over 200 steps at half of eta*",
    needs={EVERY: NORMS},
    statements=(
        Statement(
            "onset",
            "With every normalizer plain gradient descent turns unstable at 2/lambda as measured.",
            "Rate of first rise within 0.1 decade of measured eta*, median of seeds, for every normalizer.",
            _onset,
            means="Those over the batch rise later than 2/lambda: on the digits, whose rare pixels are far out, a few "
            "samples carry the top eigenvector, and the loss of the others falls faster than theirs grows. With "
            "BatchNorm on MNIST at width 1000 the rise is within 0.02 decades (`mf-onset`).",
        ),
        Statement(
            "theory",
            "Theory gives eta* for every normalizer that it has a map for.",
            "Predicted eta* within 0.1 decade of the measured one, median of seeds, for each of them.",
            _theory,
            means="Only the normalizer over the batch is off. The digits' pixels, standardized one by one, reach 37 "
            "standard deviations (kurtosis 95): single samples carry a batch's statistics, which the theory's Gaussian "
            "fields do not know. On MNIST it is within 0.02 decades (`mf-fig-2-mlp-mnist`).",
        ),
        Statement(
            "flatter",
            "Every normalizer allows larger steps than none.",
            "Measured eta* above the plain network's in every seed, for every normalizer.",
            _larger,
        ),
        Statement(
            "batch",
            "Normalizing over the batch allows larger steps than normalizing over features.",
            "Measured eta* with BatchNorm above that with LayerNorm, GroupNorm and RMSNorm in every seed.",
            _batch,
        ),
    ),
    panels=_panels,
    table=_table,
)
