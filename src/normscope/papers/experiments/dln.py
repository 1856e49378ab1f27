"""The 25-layer deep linear network of Santurkar et al. 2018, Appendix A.1: full batch, float64, with snapshots.

Curves as those of `vgg`; shift and cosine of layers 9 and 17, histograms of layers 1, 11 and 24. `step_loss` is the
training loss every `keep` steps. Beside the figure's points c <= 30 the probe takes 100 and 300, where the
source says that the smoothing goes on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from normscope.papers.experiment import Curves, Experiment, Place, Run
from normscope.results.decoding import read_json

SHIFT_LAYERS, HISTOGRAM_LAYERS = (9, 17), (1, 11, 24)
FACTORS = (0.01, 0.1, 1.0, 10.0, 30.0, 100.0, 300.0)
# The first five are the figure's.
SHOWN = 5


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run with one thread, as 10 x 10 matrices gain nothing from more; the old number returns even after an error."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@_one_thread()
def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    import torch

    from normscope import data, losses, models
    from normscope.monitor import ActivationProbe, LandscapeProbe, Monitor, ShiftProbe
    from normscope.training import train

    gaussian = data.gaussian(seed=seed).to(place.device)
    model = models.DLN(norm=settings["norm"], seed=seed).to(place.device)
    shift = ShiftProbe(update="gradient", layers=[f"linears.{i - 1}" for i in SHIFT_LAYERS])
    measure = [LandscapeProbe(FACTORS), shift, ActivationProbe(seed=seed)]
    monitor = Monitor(model, losses.half_sse, every=settings["snapshot_every"], measure=measure, budget=None)
    batch = (gaussian.x_train, gaussian.y_train)
    training = train(
        model,
        losses.half_sse,
        (batch for _ in range(settings["steps"])),
        torch.optim.SGD(model.parameters(), lr=settings["lr"]),
        seed=seed,
        monitor=monitor,
        on_step=place.tick,
    )
    records = [record for record in monitor.records if "landscape" in record.results]
    landscapes = [record.results["landscape"] for record in records]
    shifts = [record.results["shift"] for record in records]
    seen = [(record.step, record.results["activations"]) for record in records]
    chosen = [seen[int(share * (len(seen) - 1))] for share in (0.0, 0.1, 0.25, 0.5, 1.0)]
    return {
        "lr": settings["lr"],
        "diverged_at": training.diverged_at,
        "step_loss": list(training.losses[:: settings["keep"]]),
        "keep": settings["keep"],
        "step": [record.step for record in records],
        "loss": [landscape.loss for landscape in landscapes],
        "loss_min": [min(landscape.losses[:SHOWN]) for landscape in landscapes],
        "loss_max": [max(landscape.losses[:SHOWN]) for landscape in landscapes],
        "change_max": [max(landscape.changes[:SHOWN]) for landscape in landscapes],
        "beta": [max(landscape.betas[:SHOWN]) for landscape in landscapes],
        "factors": list(FACTORS),
        "change": [list(landscape.changes) for landscape in landscapes],
        "loss_at": [list(landscape.losses) for landscape in landscapes],
        "shift": {str(n): [shift.shifts[i] for shift in shifts] for i, n in enumerate(SHIFT_LAYERS)},
        "cosine": {str(n): [shift.cosines[i] for shift in shifts] for i, n in enumerate(SHIFT_LAYERS)},
        "histograms": {
            str(n): [
                {"step": step, "edges": list(activations.edges[place]), "counts": list(activations.counts[place])}
                for step, activations in chosen
                for place in (activations.layers.index(f"norms.{n - 1}"),)
            ]
            for n in HISTOGRAM_LAYERS
        },
    }


def earlier(folder: Path) -> list[Run]:
    """Seeds 0 to 2 of `none` and `batch` at lr 1e-6, with snapshots every 25 steps, stored by examples/landscape.py."""
    path, runs = folder / "landscape-dln.json", []
    for row in read_json(path)["runs"] if path.is_file() else []:
        snapshots = row["snapshots"]
        layers = {str(n): layer for n, layer in zip(SHIFT_LAYERS, sorted(row["layers"], key=_number), strict=True)}
        curves = {
            "lr": row["settings"]["lr"],
            "diverged_at": row["diverged_at"],
            **{name: snapshots[name] for name in ("step", "loss", "loss_min", "loss_max", "beta")},
            "step_loss": [*snapshots["loss"], row["final_loss"]],
            "keep": snapshots["step"][1] - snapshots["step"][0],
            "change_max": snapshots["grad_change_max"],
            "shift": {n: layer["shift"] for n, layer in layers.items()},
            "cosine": {n: layer["shift_cosine"] for n, layer in layers.items()},
        }
        runs.append(Run(row["norm"], row["seed"], curves, row["seconds"], {"files": [path.name]}))
    return runs


def _number(layer: dict[str, Any]) -> int:
    return int(layer["layer"].rpartition(".")[2])


_SHARED = {"lr": 1e-6, "keep": 25}
DLN = Experiment(
    name="dln",
    what="25-layer deep linear network: loss, landscape, covariate shift and histograms over training",
    settings={
        "paper": {"steps": 10_000, "snapshot_every": 250, **_SHARED},
        "small": {"steps": 1_500, "snapshot_every": 50, **_SHARED},
    },
    cells={
        "none": {"norm": "none", "snapshot_every": 25},
        "batch": {"norm": "batch", "snapshot_every": 25},
        "none, far": {"norm": "none"},
        "batch, far": {"norm": "batch"},
        "l1": {"norm": "l1"},
        "l2": {"norm": "l2"},
        "linf": {"norm": "linf"},
        "none, lr 1e-7": {"norm": "none", "lr": 1e-7},
        "batch, lr 1e-7": {"norm": "batch", "lr": 1e-7},
    },
    run=run,
    seconds={("paper", "cpu"): 150.0, ("small", "cpu"): 25.0, ("paper", "cuda"): 200.0, ("small", "cuda"): 30.0},
    earlier=earlier,
)
