"""Ours, beside the mean-field paper: the boundary differs from eta* because BatchNorm's gamma and beta move.

The networks and batches of the phase diagrams, a few dozen steps; once as they are trained there, once with gamma and
beta of every BatchNorm layer held at their start, so that only weights and the last layer's biases move.
"""

from functools import partial
from typing import Any

import numpy as np

from normscope.papers.curve_statistics import spread
from normscope.papers.entry import Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place
from normscope.papers.experiments.descent import crossing, goes_above
from normscope.papers.experiments.phases import SETTINGS, TOLERANCE, plan_of

PLACES = {"mnist": ("cnn", "mlp"), "cifar10": ("cnn",)}
TITLES = {"cnn": "convolutional", "mlp": "fully connected"}
# Above this gamma, gamma and beta have a small part of the curvature; below it a large part.
_LARGE = 0.5


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """At some gammas, with gamma and beta trained and held: eta* of the trained parameters, and the rate of divergence.

    predicted, measured: eta* on the stream's first batch. diverges: where the loss exceeds 10^6 times its start within
    `steps` batches of the stream, bisected. left: eta* on the first batch after `after` steps at `below` times eta*.
    """
    import torch

    from normscope.curvature import Solver, measure
    from normscope.data import batches
    from normscope.losses import LOSSES
    from normscope.prediction import predict
    from normscope.sweeping.networks import prepare
    from normscope.training import train

    plan = plan_of(settings, seed)
    networks, data = prepare(plan, place.root, torch.device(place.device))
    steps, loss_fn = settings["steps"], LOSSES[plan.loss]
    stream = list(batches(data.x_train, data.y_train, batch_size=plan.batch_size, seed=plan.stream_seed, steps=steps))
    first, images = stream[0], stream[0][0].cpu()

    def network(gamma: float, held_affine: bool) -> torch.nn.Module:
        model = networks.build(gamma, seed)
        for layer in model.modules():
            if held_affine and type(layer).__name__.startswith("BatchNorm"):
                layer.requires_grad_(False)
        return model.to(place.device)

    def eta_star(model: torch.nn.Module) -> float:
        return measure(
            model, loss_fn, first, momentum=plan.momentum, hessian=False, solver=Solver(tol=TOLERANCE)
        ).eta_star

    curves: Curves = {"gamma": [plan.values[i] for i in settings["measured_at"]]}
    for prefix, held_affine in (("", False), ("held_", True)):
        for gamma in curves["gamma"]:
            make = partial(network, gamma, held_affine)
            model = make()
            whole = predict(model.cpu(), tuple(images.shape[1:]), plan.loss, momentum=plan.momentum, batch=images)
            model = model.to(place.device)
            eta = eta_star(model)
            gone = goes_above(plan.explode, make, loss_fn, stream, steps=steps, tick=place.tick, momentum=plan.momentum)
            edge = crossing(gone, eta / 4, 8 * eta, settings["decades"])
            sgd = torch.optim.SGD(model.parameters(), lr=settings["below"] * eta, momentum=plan.momentum)
            train(model, loss_fn, stream, sgd, steps=settings["after"], seed=seed, on_step=place.tick)
            row = {"predicted": whole.eta_star, "measured": eta, "diverges": edge, "left": eta_star(model)}
            for name, number in row.items():
                curves.setdefault(prefix + name, []).append(number)
    return curves


_RUN = {"below": 0.8, "after": 12, "steps": 60, "decades": 0.05}
AFFINE = {
    data: Experiment(
        name=f"affine-{data}",
        what=f"networks of phases-{data}, the first steps: divergence with BatchNorm's gamma and beta trained and held",
        settings={
            "paper": {**SETTINGS["paper"], **_RUN, "measured_at": [0, 4, 8, 12, 17]},
            "small": {**SETTINGS["small"], **_RUN, "steps": 20, "decades": 0.1, "measured_at": [0, 2]},
        },
        cells={cell: {"data": data, "model": cell.upper()} for cell in cells},
        run=run,
        seconds={("paper", "cpu"): 300.0, ("small", "cpu"): 20.0, ("paper", "cuda"): 60.0, ("small", "cuda"): 20.0},
        data=data,
    )
    for data, cells in PLACES.items()
}
BOTH = tuple(f"affine-{data}/cnn" for data in PLACES)


def _ratios(runs: Runs, data: str, of: str, line: str, cell: str = "cnn") -> np.ndarray:
    """log10 of a rate over another: seeds by gammas."""
    by_seed = runs.of(cell, f"affine-{data}").values()
    return np.array([np.log10(np.array(c[of]) / np.array(c[line])) for c in by_seed])


def _gammas(runs: Runs, data: str, cell: str = "cnn") -> list[float]:
    return list(next(iter(runs.of(cell, f"affine-{data}").values()))["gamma"])


def _signed(values: np.ndarray) -> str:
    """The median of seeds, gamma by gamma."""
    return ", ".join(f"{number:+.2f}" for number in np.median(values, axis=0))


def _at_eta(runs: Runs, line: str) -> list[Part]:
    parts = []
    for data in PLACES:
        held_ratios = _ratios(runs, data, "held_diverges", f"held_{line}")
        middle, worst = float(np.median(np.abs(held_ratios))), float(np.abs(held_ratios).max())
        trained = _ratios(runs, data, "diverges", line)
        words = (
            f"{data}: {middle:.2f} decades in the median ({_signed(held_ratios)} by gamma; trained {_signed(trained)})"
        )
        parts += [Part(words, middle <= 0.1), Part(f"{data}: {worst:.2f} at worst", worst <= 0.2)]
    return parts


def _spread(runs: Runs) -> list[Part]:
    parts = []
    for data in PLACES:
        wide = [np.ptp(np.median(_ratios(runs, data, f"{h}diverges", f"{h}measured"), axis=0)) for h in ("", "held_")]
        words = f"{data}: distances differ by {wide[0]:.2f} decades over gamma if trained, by {wide[1]:.2f} if held"
        parts.append(Part(words, bool(wide[0] >= 2 * wide[1])))
    return parts


def _little(runs: Runs) -> list[Part]:
    parts = []
    for data in PLACES:
        large = np.array(_gammas(runs, data)) >= _LARGE
        share = 1 - 10 ** -_ratios(runs, data, "held_measured", "measured")
        words = f"{data}: {share[:, large].min():.1%} to {share[:, large].max():.1%} of lambda from gamma {_LARGE} on, "
        parts.append(
            Part(
                f"{words}{share[:, 0].mean():.0%} at gamma {_gammas(runs, data)[0]:.2g}",
                bool((share[:, large] <= 0.1).all()),
            )
        )
    return parts


def _below(runs: Runs) -> list[Part]:
    parts = []
    for data in PLACES:
        for i, gamma in enumerate(_gammas(runs, data)):
            if gamma >= _LARGE:
                moved = [float(np.median(_ratios(runs, data, f"{h}left", f"{h}measured")[:, i])) for h in ("", "held_")]
                words = (
                    f"{data}, gamma {gamma:.2g}: eta* is {moved[0]:+.2f} decades from its start, held {moved[1]:+.2f}"
                )
                parts.append(Part(words, abs(moved[1]) <= abs(moved[0]) / 2))
    return parts


def _small_gamma(runs: Runs) -> list[Part]:
    parts = []
    for data, cells in PLACES.items():
        for cell in cells:
            apart = [
                float(np.median(_ratios(runs, data, f"{h}diverges", f"{h}measured", cell)[:, 0])) for h in ("", "held_")
            ]
            words = f"{data}, {TITLES[cell]}: {apart[0]:+.2f} decades if trained, {apart[1]:+.2f} if held"
            parts.append(Part(words, apart[0] < -0.1 < apart[1]))
    return parts


def _panels(runs: Runs) -> list[Picture]:
    panels = []
    for data, cells in PLACES.items():
        for cell in cells:
            if not runs.of(cell, f"affine-{data}"):
                continue
            gammas = _gammas(runs, data, cell)
            lines = [
                spread(label, gammas, list(_ratios(runs, data, f"{h}diverges", f"{h}measured", cell)))
                for h, label in (("", "gamma and beta trained"), ("held_", "gamma and beta held"))
            ]
            title = f"{data}, {TITLES[cell]}"
            level = (0.0, "agreement")
            panels.append(Picture(title, "gamma", "log10(divergence / eta*)", lines, log_x=True, level=level))
    return panels


_RULE = "at most 0.1 decade in the median over gamma and seeds, at most 0.2 at worst, on MNIST and on CIFAR-10."
ENTRY = Entry(
    name="mf-affine",
    title="What parts the boundary from eta*: BatchNorm's gamma and beta move",
    source="ours, on the networks of Mean-field analysis of batch normalization, Figure 2",
    origin="networks, batches and momentum of the phase diagrams at five gammas, 60 steps, divergence bisected to 0.05 "
    "decades; once as trained there, once with gamma and beta of every BatchNorm layer held at their start",
    needs={AFFINE[data]: cells for data, cells in PLACES.items()},
    statements=(
        Statement(
            "held",
            "With gamma and beta held, the convolutional network diverges at eta* as measured.",
            f"Distance of the rate of divergence from measured eta*, both of the weights alone: {_RULE}",
            lambda runs: _at_eta(runs, "measured"),
            cells=BOTH,
            means="The bar is the one that the network as trained misses (`mf-fig-2-cnn-mnist/corrected`). Here it is "
            "60 steps of one seed at a time, in the sweeps five epochs and the first seed that diverges.",
        ),
        Statement(
            "held-theory",
            "And at eta* of the corrected theory.",
            f"Distance of the rate of divergence from predicted eta*, both of the weights alone: {_RULE}",
            lambda runs: _at_eta(runs, "predicted"),
            cells=BOTH,
        ),
        Statement(
            "spread",
            "It is gamma and beta in motion that make the distance depend on gamma.",
            "Largest minus smallest distance from measured eta* over gamma, median of seeds: at least twice as large "
            "with gamma and beta trained as with them held, on both.",
            _spread,
            cells=BOTH,
        ),
        Statement(
            "little",
            "They have little of the curvature themselves.",
            "Measured lambda of the weights alone at least 0.9 of the whole, at every gamma from 0.5 on in every seed.",
            _little,
            cells=BOTH,
        ),
        Statement(
            "below",
            "Below eta*, too, it is they that change the curvature.",
            "Twelve steps at 0.8 eta*: eta* on the first batch moves, in decades, at most half as far with gamma and "
            "beta held, median of seeds, at every gamma from 0.5 on.",
            _below,
            cells=BOTH,
            means="Not at gamma 3.3: twelve steps so small move gamma and beta by little, and what changes lambda "
            "there is the weights.",
        ),
        Statement(
            "small-gamma",
            "At the smallest gamma training diverges before eta*, and that is theirs as well.",
            "Gamma 0.1, median of seeds: divergence more than 0.1 decade below measured eta* with gamma and beta "
            "trained and not so with them held, on all three networks.",
            _small_gamma,
            scales=("paper",),
        ),
    ),
    panels=_panels,
)
