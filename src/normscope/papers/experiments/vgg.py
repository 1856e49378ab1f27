"""VGG-16 on CIFAR-10 at the settings of Santurkar et al. 2018, Appendix A.1, with all quantities of its figures.

Curves of a run:

    step, loss, loss_min, loss_max, grad_norm, change_max, beta     every `snapshot_every` steps (A.2.2 there)
    factors, change                                                 |grad L(theta_c) - g| for each c, by snapshot
    shift, cosine                                                   layers 5 and 10, Definition 2.1, by snapshot
    moments                                                         layers 2, 9, 13: |change| of mean and variance from
                                                                    one step to the next, and the drift since the first
    histograms                                                      layers 3 and 11 at five snapshots
    accuracy                                                        of the training batches, means between snapshots
    evaluated, test_accuracy, train_accuracy, penalty               every `evaluate` steps; penalty = (wd/2)|W|^2
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.papers.experiment import Curves, Experiment, Place, Run
from normscope.results.decoding import read_json

if TYPE_CHECKING:
    import torch

    from normscope.data import Dataset

SHIFT_LAYERS, MOMENT_LAYERS, HISTOGRAM_LAYERS = (5, 10), (2, 9, 13), (3, 11)
DECAY = 4e-4


@cache
def cifar10_on(root: str | None, device: str) -> "Dataset":
    """CIFAR-10 on the device, read once in each process."""
    from normscope.data import cifar10

    return cifar10(root).to(device)


@contextmanager
def lp_fused(device: str) -> Iterator[None]:
    """Compile l_p layers on a GPU; run eagerly, their passes over the activations would take most of a step."""
    if not device.startswith("cuda"):
        yield
        return
    import torch

    from normscope.norms import LpNorm2d

    eager = LpNorm2d.forward
    LpNorm2d.forward = torch.compile(eager, dynamic=False)  # type: ignore[method-assign]
    try:
        with torch._dynamo.config.patch(recompile_limit=64):
            yield
    finally:
        LpNorm2d.forward = eager  # type: ignore[method-assign]


class Hits:
    """Training accuracy for each stretch of steps, without a transfer from the device at each step.

    The counts are tensors on the device, which a replayed step writes as an eager one does.
    """

    def __init__(self, device: str) -> None:
        import torch

        self._now, self._closed = torch.zeros(2, device=device), list[torch.Tensor]()

    def loss(self, output: "torch.Tensor", target: "torch.Tensor") -> "torch.Tensor":
        from normscope.losses import cross_entropy

        self._now[0] += (output.detach().argmax(1) == target).sum()
        self._now[1] += len(target)
        return cross_entropy(output, target)

    def close(self) -> None:
        """End a stretch."""
        self._closed.append(self._now.clone())
        self._now.zero_()

    def shares(self) -> list[float]:
        """Accuracy of each finished stretch, and of the one under way if it has a batch (training diverged in it)."""
        import torch

        right, seen = torch.stack([*self._closed, self._now]).T.tolist()
        return [r / n for r, n in zip(right, seen, strict=True) if n]


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    with lp_fused(place.device):
        return _run(settings, seed, place)


def _run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    import torch

    from normscope import losses, models
    from normscope.data import batches, crop_and_flip
    from normscope.monitor import VGG_FACTORS, ActivationProbe, LandscapeProbe, Monitor, ShiftProbe
    from normscope.training import accuracy, train

    cifar = cifar10_on(place.root, place.device)
    model = place.put(models.VGG(16, width=settings["width"], norm=settings["norm"], seed=seed))
    names = [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Conv2d)]
    shift = ShiftProbe(update="gradient", layers=[names[i - 1] for i in SHIFT_LAYERS])
    monitor = Monitor(
        model,
        losses.cross_entropy,
        every=settings["snapshot_every"],
        measure=[LandscapeProbe(VGG_FACTORS), shift, ActivationProbe(seed=seed)],
        budget=None,
    )
    hits = Hits(place.device)

    def on_step(step: int) -> None:
        place.tick(step)
        if (step + 1) % settings["snapshot_every"] == 0:
            hits.close()

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        weights = sum(float(p.square().sum()) for p in model.parameters())
        return {
            "test_accuracy": accuracy(model, cifar.x_test, cifar.y_test),
            "train_accuracy": accuracy(model, cifar.x_train[:10_000], cifar.y_train[:10_000]),
            "penalty": DECAY / 2 * weights,
        }

    training = train(
        model,
        hits.loss,
        batches(
            cifar.x_train,
            cifar.y_train,
            batch_size=settings["batch_size"],
            seed=seed,
            steps=settings["steps"],
            augment=crop_and_flip if settings["augment"] else None,
        ),
        torch.optim.SGD(model.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"]),
        seed=seed,
        evaluate=evaluate,
        every=settings["evaluate"],
        check_every=50,
        monitor=monitor,
        on_step=on_step,
        replay=True,
    )
    evaluations = training.evaluations
    return {
        "diverged_at": training.diverged_at,
        **_landscapes(monitor, settings),
        **_layers(monitor, names),
        "accuracy": hits.shares(),
        "evaluated": [evaluation["step"] for evaluation in evaluations],
        **{
            name: [evaluation[name] for evaluation in evaluations]
            for name in ("test_accuracy", "train_accuracy", "penalty")
        },
    }


def _landscapes(monitor: Any, settings: dict[str, Any]) -> Curves:
    records = [record for record in monitor.records if "landscape" in record.results]
    landscapes = [record.results["landscape"] for record in records]
    bands = [landscape.band for landscape in landscapes]
    return {
        "step": [record.step for record in records],
        "lr": settings["lr"],
        "loss": [landscape.loss for landscape in landscapes],
        "loss_min": [low for low, _ in bands],
        "loss_max": [high for _, high in bands],
        "grad_norm": [landscape.grad_norm for landscape in landscapes],
        "change_max": [max(landscape.changes) for landscape in landscapes],
        "beta": [landscape.beta for landscape in landscapes],
        "factors": list(landscapes[0].factors),
        "change": [list(landscape.changes) for landscape in landscapes],
    }


def _layers(monitor: Any, names: list[str]) -> Curves:
    shifts = [record.results["shift"] for record in monitor.records if "shift" in record.results]
    curves: Curves = {
        "shift": {str(n): [shift.shifts[i] for shift in shifts] for i, n in enumerate(SHIFT_LAYERS)},
        "cosine": {str(n): [shift.cosines[i] for shift in shifts] for i, n in enumerate(SHIFT_LAYERS)},
        "moments": {},
        "histograms": {},
    }
    seen = [(r.step, r.results["activations"]) for r in monitor.records if "activations" in r.results]
    # Only the record after a snapshot compares two steps in a row. A network without a norm has an Identity there.
    after = [activations for _, activations in seen if not math.isnan(activations.mean_changes[0])]
    for number in MOMENT_LAYERS:
        place = seen[0][1].layers.index(str(int(names[number - 1]) + 1))
        curves["moments"][str(number)] = {
            "mean_change": [activations.mean_changes[place] for activations in after],
            "variance_change": [activations.variance_changes[place] for activations in after],
            "mean_drift": [activations.mean_drifts[place] for activations in after],
            "variance_drift": [activations.variance_drifts[place] for activations in after],
        }
    for number in HISTOGRAM_LAYERS:
        place = seen[0][1].layers.index(str(int(names[number - 1]) + 1))
        chosen = [seen[int(share * (len(seen) - 1))] for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
        curves["histograms"][str(number)] = [
            {"step": step, "edges": list(activations.edges[place]), "counts": list(activations.counts[place])}
            for step, activations in chosen
        ]
    return curves


def earlier(folder: Path) -> list[Run]:
    """Seeds 0 and 1 of `none` and `batch`: one training with snapshots and one with evaluations, of one plan.

    Both were stored before the rules were written down here; the rules are those of the sources' captions.
    """
    by_norm_and_seed: dict[tuple[str, int], Curves] = {}
    looked, evaluated = folder / "landscape-vgg16-cifar10.json", folder / "vgg16-cifar10.json"
    for row in read_json(looked)["runs"] if looked.is_file() else []:
        snapshots = row["snapshots"]
        layers = {str(n): layer for n, layer in zip(SHIFT_LAYERS, sorted(row["layers"], key=_number), strict=True)}
        by_norm_and_seed[row["norm"], row["seed"]] = {
            "lr": row["settings"]["lr"],
            **{name: snapshots[name] for name in ("step", "loss", "loss_min", "loss_max", "grad_norm", "beta")},
            "change_max": snapshots["grad_change_max"],
            "shift": {n: layer["shift"] for n, layer in layers.items()},
            "cosine": {n: layer["shift_cosine"] for n, layer in layers.items()},
        }
    for row in read_json(evaluated)["runs"] if evaluated.is_file() else []:
        curves = by_norm_and_seed.setdefault((row["norm"], row["seed"]), {})
        curves["evaluated"] = [evaluation["step"] for evaluation in row["evaluations"]]
        for name in ("test_accuracy", "train_accuracy"):
            curves[name] = [evaluation[name] for evaluation in row["evaluations"]]
    made = {"files": [looked.name, evaluated.name]}
    return [Run(norm, seed, curves, 0.0, made) for (norm, seed), curves in by_norm_and_seed.items()]


def _number(layer: dict[str, Any]) -> int:
    return int(layer["layer"])


_SHARED = {"batch_size": 128, "lr": 0.1, "weight_decay": 0.0, "augment": False}
VGG = Experiment(
    name="vgg",
    what="VGG-16 on CIFAR-10: accuracy, landscape, covariate shift and moments over training",
    settings={
        "paper": {"width": 1.0, "steps": 15_000, "snapshot_every": 100, "evaluate": 500, **_SHARED},
        "small": {"width": 0.25, "steps": 1_000, "snapshot_every": 20, "evaluate": 250, **_SHARED},
    },
    cells={
        "none": {"norm": "none"},
        "batch": {"norm": "batch"},
        "noisy": {"norm": "noisy"},
        "noise": {"norm": "noise"},
        "l1": {"norm": "l1"},
        "l2": {"norm": "l2"},
        "linf": {"norm": "linf"},
        "none, lr 0.5": {"norm": "none", "lr": 0.5},
        "batch, lr 0.5": {"norm": "batch", "lr": 0.5},
        "none, lr 0.01": {"norm": "none", "lr": 0.01},
        "batch, lr 0.01": {"norm": "batch", "lr": 0.01},
        "none, augmented": {"norm": "none", "augment": True},
        "batch, augmented": {"norm": "batch", "augment": True},
        "none, decayed": {"norm": "none", "weight_decay": DECAY},
        "batch, decayed": {"norm": "batch", "weight_decay": DECAY},
    },
    run=run,
    seconds={("paper", "cuda"): 170.0, ("paper", "cpu"): 21_000.0, ("small", "cpu"): 240.0, ("small", "cuda"): 20.0},
    data="cifar10",
    earlier=earlier,
)
