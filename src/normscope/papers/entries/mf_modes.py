"""Ours, beside the mean-field paper: a data mode may have the top eigenvalue, but the mean mode sets the boundary.

Mean mode: all outputs of a batch move alike. Data modes: samples move apart; photographs have a large one, brightness.
"""

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from normscope.papers.curve_statistics import spread
from normscope.papers.entry import Curve, Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place
from normscope.papers.experiments.phases import PHASES, SETTINGS, TOLERANCE, plan_of
from normscope.papers.phase_diagrams import Diagram, size
from normscope.sweeping.boundary import distance

DATA = ("mnist", "cifar10")
# Decades between lambda after some steps and lambda of the mean mode.
_LEFT = 0.1


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """eta* of both modes by theory at every value; and, at those `measured_at`, lambda in training on one batch.

    measured: eta* on the stream's first batch. several: on the mean over `batches` of the stream. left: on the first
    batch after `after` steps on it alone, at `beyond` times measured eta*; nan where it diverged before. highest: the
    loss there over its start, at most, within `steps` steps; infinite where it diverged, as in sweeps.
    """
    import torch

    from normscope.curvature import Solver, measure
    from normscope.data import batches
    from normscope.losses import LOSSES
    from normscope.prediction import predict
    from normscope.sweeping.networks import prepare

    plan = plan_of(settings, seed)
    networks, data = prepare(plan, place.root, torch.device(place.device))
    count = settings["batches"]
    stream = list(batches(data.x_train, data.y_train, batch_size=plan.batch_size, seed=plan.stream_seed, steps=count))
    (x, y), loss_fn = stream[0], LOSSES[plan.loss]
    eta_stars: dict[str, list[float]] = {name: [] for name in ("mean_mode", "data_mode")}
    for value in plan.values:
        model = networks.build(value, seed)
        modes = predict(model, tuple(x.shape[1:]), plan.loss, momentum=plan.momentum, batch=x.cpu())
        top = modes.eta_star * modes.lambda_max
        eta_stars["mean_mode"].append(top / modes.mean_mode)
        eta_stars["data_mode"].append(top / modes.data_mode)

    def eta_star(model: torch.nn.Module, seen: Any) -> float:
        return measure(
            model, loss_fn, seen, momentum=plan.momentum, hessian=False, solver=Solver(tol=TOLERANCE)
        ).eta_star

    by_value: dict[str, list[float]] = {name: [] for name in ("measured_at", "measured", "several", "left", "highest")}
    for gamma in (plan.values[i] for i in settings["measured_at"]):
        model = networks.build(gamma, seed).to(place.device)
        first_eta = eta_star(model, (x, y))
        several = eta_star(model, stream)
        trained = deepcopy(model)
        sgd = torch.optim.SGD(trained.parameters(), lr=settings["beyond"] * first_eta, momentum=plan.momentum)
        losses, left = list[float](), math.nan
        for step in range(settings["steps"]):
            place.tick(step)
            if step == settings["after"]:
                left = eta_star(trained, (x, y))
            sgd.zero_grad()
            loss = loss_fn(trained(x), y)
            loss.backward()
            sgd.step()
            losses.append(float(loss.detach()))
            if not losses[-1] <= plan.explode * losses[0]:
                losses.append(math.inf)
                break
        highest = max(losses) / losses[0]
        for name, number in zip(by_value, (gamma, first_eta, several, left, highest), strict=True):
            by_value[name].append(number)
    return {"value": list(plan.values), **eta_stars, **by_value}


_BEYOND = {"beyond": 1.26, "batches": 6, "after": 12, "steps": 40}
MODES = {
    data: Experiment(
        name=f"modes-{data}",
        what=f"the networks of phases-{data}: eta* of the mean mode and of the data modes, and training beyond the top",
        settings={
            "paper": {**SETTINGS["paper"], **_BEYOND, "measured_at": [4, 11, 17]},
            "small": {**SETTINGS["small"], **_BEYOND, "measured_at": [1, 2]},
        },
        cells={"mlp": {"data": data, "model": "MLP"}, "cnn": {"data": data, "model": "CNN", "measured_at": []}},
        run=run,
        seconds={("paper", "cpu"): 120.0, ("small", "cpu"): 10.0, ("paper", "cuda"): 20.0, ("small", "cuda"): 10.0},
        data=data,
    )
    for data in DATA
}


def _line(runs: Runs, data: str, name: str) -> dict[float, float]:
    """eta* by value: the median over seeds."""
    all_seeds = list(runs.of("mlp", f"modes-{data}").values())
    middle = np.median([curves[name] for curves in all_seeds], axis=0)
    return dict(zip(all_seeds[0]["value"], map(float, middle), strict=True))


def _boundary(runs: Runs, data: str) -> list[Part]:
    at = Diagram(runs, f"phases-{data}", f"modes-{data}", "mlp")
    middle, worst = size(distance("mean mode", at.edges, _line(runs, data, "mean_mode")))
    return [
        Part(f"{data}: {middle:.2f} decades in the median", middle <= 0.1),
        Part(f"{data}: {worst:.2f} at worst", worst <= 0.2),
    ]


def _top(runs: Runs, cell: str, wanted: Mapping[str, str]) -> list[Part]:
    """wanted: which of the modes is to have the larger lambda, by data set."""
    parts = []
    for data, name in wanted.items():
        curves = list(runs.of(cell, f"modes-{data}").values())
        ratios = np.array([np.array(c["mean_mode"]) / np.array(c["data_mode"]) for c in curves])
        words = f"{data}: lambda of the data mode is {ratios.min():.2f} to {ratios.max():.2f} times the mean mode's"
        parts.append(Part(words, bool((ratios > 1).all() if name == "data_mode" else (ratios < 1).all())))
    return parts


def _survives(runs: Runs) -> list[Part]:
    rows = np.array([curves["highest"] for curves in runs.of("mlp", "modes-cifar10").values()], dtype=float)
    words = f"the loss reaches {rows.min():.1f} to {rows.max():.1f} times its start, infinity being divergence"
    return [Part(words, bool(np.isfinite(rows).all()))]


def _left(runs: Runs) -> list[Part]:
    parts, all_seeds = [], list(runs.of("mlp", "modes-cifar10").values())
    for i, value in enumerate(all_seeds[0]["measured_at"]):
        mean = [curves["mean_mode"][curves["value"].index(value)] for curves in all_seeds]
        left = [math.log10(m / c["left"][i]) for m, c in zip(mean, all_seeds, strict=True)]
        first_logs = [math.log10(m / c["measured"][i]) for m, c in zip(mean, all_seeds, strict=True)]
        several = [math.log10(m / c["several"][i]) for m, c in zip(mean, all_seeds, strict=True)]
        words = (
            f"gamma {value:.2g}: lambda is {np.median(first_logs):+.2f} decades from the mean mode's at the start "
            f"({np.median(several):+.2f} as the mean over six batches), {np.median(left):+.2f} after twelve steps"
        )
        parts.append(Part(words, abs(float(np.median(left))) <= _LEFT))
    return parts


def _panels(runs: Runs) -> list[Picture]:
    panels = []
    for data in DATA:
        all_seeds = list(runs.of("mlp", f"modes-{data}").values())
        if not all_seeds or not runs.of("mlp", f"phases-{data}"):
            continue
        at = Diagram(runs, f"phases-{data}", f"modes-{data}", "mlp")
        known = [edge for edge in at.edges if math.isfinite(edge.eta)]
        lines = [Curve("first divergence", [edge.value for edge in known], [edge.eta for edge in known])]
        for name, label in (("mean_mode", "eta* of the mean mode"), ("data_mode", "eta* of the data mode")):
            lines.append(spread(label, all_seeds[0]["value"], [curves[name] for curves in all_seeds]))
        panels.append(Picture(data, "gamma", "learning rate", lines, log_x=True, log_y=True))
    return panels


ENTRY = Entry(
    name="mf-modes",
    title="Training survives a data mode; the boundary is the mean mode's",
    source="ours, on the networks of Mean-field analysis of batch normalization, Figure 2",
    origin="the fully connected networks and batches of the phase diagrams; one batch of CIFAR-10 again and again, "
    "momentum 0.9, at 1.26 times eta* as measured on it",
    needs={PHASES[data]: ("mlp",) for data in DATA} | {MODES[data]: ("mlp", "cnn") for data in DATA},
    statements=(
        Statement(
            "top",
            "On a batch of MNIST the mean mode has the top eigenvalue, on one of CIFAR-10 a data mode.",
            "By theory, lambda of the data mode below the mean mode's on MNIST and above it on CIFAR-10, at every "
            "gamma in every seed.",
            lambda runs: _top(runs, "mlp", {"mnist": "mean_mode", "cifar10": "data_mode"}),
            cells=("mlp",),
            means="On CIFAR-10 it is a data mode from gamma 0.15 on; at the two smallest gammas the last gamma and "
            "beta, which all samples see alike, have most of lambda. A theory by means over channels, with which these "
            "rules were written, had data modes a third too high and on top at every gamma.",
        ),
        Statement(
            "convolutional",
            "In the convolutional network the mean mode has the top eigenvalue on both.",
            "By theory, lambda of the data mode below the mean mode's, at every gamma in every seed.",
            lambda runs: _top(runs, "cnn", dict.fromkeys(DATA, "mean_mode")),
            cells=tuple(f"modes-{data}/cnn" for data in DATA),
            means="So no data mode is what parts the boundary of the convolutional network from eta*; `mf-affine` has "
            "what does.",
        ),
        Statement(
            "boundary",
            "The mean mode alone gives the boundary of divergence on both.",
            "Distance of the mean mode's eta* from the boundary: at most 0.1 decade in the median over gamma, at most "
            "0.2 at worst.",
            lambda runs: [part for data in DATA for part in _boundary(runs, data)],
            cells=("mlp",),
            means="The worst is gamma 0.1 on both, where gamma and the weights move far within a few steps.",
        ),
        Statement(
            "survives",
            "Beyond eta* of a data mode training survives, on that very batch.",
            "CIFAR-10, one batch, 1.26 times measured eta*: no loss above 10^6 times its start in 40 steps, at three "
            "gammas in every seed.",
            _survives,
            cells=("modes-cifar10/mlp",),
        ),
        Statement(
            "left",
            "The data mode is gone within a few steps, and the mean mode is left.",
            "The same runs: lambda on the batch after twelve steps within 0.1 decade of the mean mode's at the start, "
            "median of seeds, at each gamma.",
            _left,
            cells=("modes-cifar10/mlp",),
            means="At gamma 0.23 steps are large: the last gamma itself moves, and lambda with it.",
        ),
    ),
    panels=_panels,
)
