"""The boundary of divergence, bisected, with one thing changed at a time: width, depth, batch size, momentum, loss.

Curves as those of `phases.run` and `phases.eta_stars` together, at three gammas.
"""

from typing import Any

from normscope.papers.experiment import Curves, Experiment, Place
from normscope.papers.experiments.phases import SETTINGS, eta_stars
from normscope.papers.experiments.phases import run as phases

WIDTHS, DEPTHS, BATCHES, MOMENTA = (250, 500, 2000), (2, 3, 6, 8), (32, 512, 1024), (0.0, 0.5)
BASE = "base"
# Epochs by batch size: the number of steps is about the same, near that of one epoch of the base.
_EPOCHS = {32: 1, 512: 4, 1024: 8}


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    return {**phases(settings, seed, place), **eta_stars(settings, seed, place)}


_SHARED: dict[str, Any] = {
    "data": "mnist",
    "model": "MLP",
    "epochs": 1,
    "rates": [-3.5, 0.5, 21],
    "values": [0.5, 2.0, 3],
    "bisect": 0.05,
}
SCALING = Experiment(
    name="scaling",
    what="boundary of divergence of the fully connected network on MNIST, bisected to 0.05 decades, beside eta*",
    settings={
        "paper": SETTINGS["paper"] | _SHARED,
        "small": SETTINGS["small"] | _SHARED | {"rates": [-3.0, 1.0, 11], "bisect": 0.1},
    },
    cells={
        BASE: {},
        **{f"width {width}": {"width": width} for width in WIDTHS},
        **{f"depth {depth}": {"depth": depth} for depth in DEPTHS},
        **{f"batch {size}": {"batch_size": size, "epochs": _EPOCHS[size]} for size in BATCHES},
        **{f"momentum {momentum:g}": {"momentum": momentum} for momentum in MOMENTA},
        "cross-entropy": {"loss": "cross_entropy", "rates": [-2.0, 2.0, 21]},
    },
    run=run,
    seconds={("paper", "cuda"): 15.0, ("paper", "cpu"): 1_800.0, ("small", "cpu"): 40.0, ("small", "cuda"): 15.0},
    data="mnist",
)
