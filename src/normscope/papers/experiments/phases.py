"""Phase diagrams of Wei et al. 2019, Figures 2 and 3: for one seed, every learning rate at every gamma (or sigma_w).

Curves of a run, one row for each value of the axis:

    value, rate                 the grid; rates at a refined boundary differ from value to value
    diverged_at, rose_at        steps, or None (`normscope.sweeping.Outcome`)
    first_loss, train_loss      of the first and the last epoch's batches
    test_loss                   after the last epoch, in eval mode

`eta_stars` has the predictions and measurements of the same networks on the same first batch, without training:

    value, printed, corrected, measured          eta* of each
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.papers.experiment import Curves, Experiment, Place, Run, compact, numbers

if TYPE_CHECKING:
    from normscope.sweeping import Outcome, Plan

# Relative residual of a measured eigenvalue: far below what a grid in decades resolves.
TOLERANCE = 0.01
# The most members trained at once. A compiled stack keeps diverged members to its end, so that small groups of like
# fate save what an eager stack saves by dropping them; and several seeds at once share the GPU's memory.
GROUP = {"auto": 105, "always": 42}


def plan_of(settings: dict[str, Any], seed: int) -> "Plan":
    """The sweep's plan of one seed; all seeds see the same stream of batches."""
    from normscope.sweeping import Plan, grid

    low, high, count = settings["rates"]
    first, last, values = settings["values"]
    mnist, dense = settings["data"] == "mnist", settings["model"] == "MLP"
    arguments: dict[str, Any] = {"norm": settings["norm"]}
    if dense:
        arguments |= {"d_in": 784 if mnist else 3072, "width": settings["width"], "depth": settings["depth"]}
    else:
        arguments |= {"in_channels": 1 if mnist else 3, "size": 28 if mnist else 32, "channels": settings["channels"]}
    return Plan(
        settings["model"],
        settings["data"],
        learning_rates=grid(count=count, log10_from=low, log10_to=high),
        values=grid(count=values, **{"from": first, "to": last}),
        axis=settings["axis"],
        seeds=(seed,),
        arguments=arguments,
        loss=settings["loss"],
        momentum=settings["momentum"],
        batch_size=settings["batch_size"],
        epochs=settings["epochs"],
        # On a GPU the convolutional network's maps are many and small, and fused operations read them less often; the
        # dense networks wait for their weights either way. On a CPU convolutional networks train one at a time.
        compile="auto" if dense else "always",
        bisect=settings["bisect"],
    )


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """Train the grid, then the boundary's refinement if the settings ask for one."""
    return packed(trained(plan_of(settings, seed), place))


def trained(plan: "Plan", place: Place) -> "list[Outcome]":
    """All outcomes of a plan, with the place's tick after every stretch of training."""
    from normscope.sweeping.boundary import refinement
    from normscope.sweeping.trainer import Trainer, even_groups

    trainer, done = Trainer(plan, device=place.device, root=place.root, every_epoch=False), list[Any]()
    cells, most = plan.cells(), GROUP[plan.compile]
    while cells:
        size = min(trainer.group_size(len(cells)), even_groups(len(cells), most))
        for start in range(0, len(cells), size):
            place.tick(start)
            for outcomes in trainer.train(cells[start : start + size], size=size, advance=lambda _: place.tick(0)):
                done += outcomes
        cells = refinement(plan, done) if plan.bisect else []
    return done


def packed(outcomes: "Iterable[Outcome]") -> Curves:
    """Outcomes of one seed as rows of numbers."""
    by_value: dict[float, list[Outcome]] = {}
    for each in sorted(outcomes, key=lambda outcome: outcome.cell):
        by_value.setdefault(each.cell.value, []).append(each)
    rows = {value: by_value[value] for value in sorted(by_value)}
    return {
        "value": list(rows),
        "rate": [[outcome.cell.lr for outcome in row] for row in rows.values()],
        "diverged_at": [[outcome.diverged_at for outcome in row] for row in rows.values()],
        "rose_at": [[outcome.rose_at for outcome in row] for row in rows.values()],
        "first_loss": [[outcome.train_loss[0] for outcome in row] for row in rows.values()],
        "train_loss": [[outcome.train_loss[-1] for outcome in row] for row in rows.values()],
        "test_loss": [[outcome.test_loss[-1] for outcome in row] for row in rows.values()],
    }


def eta_stars(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """eta* of the grid's initial networks: as printed, corrected, and measured on the stream's first batch."""
    import torch

    from normscope.curvature import Solver, measure
    from normscope.data import batches
    from normscope.losses import LOSSES
    from normscope.prediction import predict
    from normscope.stability import momentum_limit
    from normscope.sweeping.networks import prepare

    plan = plan_of(settings, seed)
    networks, data = prepare(plan, place.root, torch.device(place.device))
    stream = batches(data.x_train, data.y_train, batch_size=plan.batch_size, seed=plan.stream_seed, steps=1)
    ((x, y),) = stream
    factor, images = momentum_limit(plan.momentum).factor, x.cpu()
    lines: dict[str, list[float]] = {"printed": [], "corrected": [], "measured": []}
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        for number, value in enumerate(plan.values):
            place.tick(number)
            model = networks.build(value, seed)
            shape, m = tuple(x.shape[1:]), len(x)
            lines["printed"].append(factor / predict(model, shape, plan.loss, m, theory="paper").lambda_max)
            lines["corrected"].append(factor / predict(model, shape, plan.loss, m, batch=images).lambda_max)
            on_device = model.to(place.device)
            measured = measure(on_device, LOSSES[plan.loss], (x, y), hessian=False, solver=Solver(tol=TOLERANCE))
            lines["measured"].append(factor / measured.lambda_max)
    finally:
        torch.set_float32_matmul_precision(precision)
    return {"value": list(plan.values), **lines}


def earlier(folder: Path) -> list[Run]:
    """Five seeds of the fully connected network on MNIST, stored by `normscope sweep examples/sweep_mnist.toml`."""
    from normscope.sweeping import PhaseDiagram

    path = folder / "phase-mnist-mlp.json"
    if not path.is_file():
        return []
    diagram = PhaseDiagram.load(path)
    runs = []
    for seed in diagram.plan.seeds:
        curves = packed(outcome for outcome in diagram.outcomes if outcome.cell.seed == seed)
        runs.append(Run("mlp", seed, numbers(compact(curves)), 0.0, {"files": [path.name]}))
    return runs


_SHARED: dict[str, Any] = {
    "axis": "gamma",
    "norm": "batch",
    "loss": "half_mse",
    "momentum": 0.9,
    "batch_size": 128,
    "depth": 4,
    "bisect": 0.0,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {
        "epochs": 5,
        "width": 1000,
        "channels": [30, 60, 90],
        "rates": [-3.5, 0.5, 21],
        "values": [0.1, 5.0, 20],
        **_SHARED,
    },
    "small": {
        "epochs": 1,
        "width": 100,
        "channels": [8, 16, 24],
        "rates": [-3.0, 1.0, 11],
        "values": [0.25, 4.0, 4],
        **_SHARED,
    },
}
_CELLS: dict[str, dict[str, Any]] = {"mlp": {"model": "MLP"}, "cnn": {"model": "CNN"}}
_VANILLA = {"model": "MLP", "norm": "none", "axis": "sigma_w", "rates": [-5.0, 0.0, 21], "values": [0.5, 3.0, 10]}


def _experiments(data: str) -> tuple[Experiment, Experiment]:
    cells = {cell: {"data": data, **changed} for cell, changed in _CELLS.items()}
    if data == "mnist":
        cells["vanilla"] = {"data": data, **_VANILLA}
    phases = Experiment(
        name=f"phases-{data}",
        what=f"one seed's phase diagram on {data}: test loss and divergence over learning rate and gamma or sigma_w",
        settings=SETTINGS,
        cells=cells,
        run=run,
        seconds={("paper", "cuda"): 60.0, ("paper", "cpu"): 9_000.0, ("small", "cpu"): 60.0, ("small", "cuda"): 30.0},
        data=data,
        earlier=earlier if data == "mnist" else lambda folder: [],
    )
    stated = Experiment(
        # Stored files and hashes of plans have this name.
        name=f"eta-stars-{data}",
        what=f"eta* of the networks of phases-{data} as printed, corrected and measured on the first batch",
        settings=SETTINGS,
        cells=cells,
        run=eta_stars,
        seconds={("paper", "cuda"): 15.0, ("paper", "cpu"): 80.0, ("small", "cpu"): 10.0, ("small", "cuda"): 10.0},
        data=data,
    )
    return phases, stated


_MADE = {data: _experiments(data) for data in ("mnist", "cifar10")}
PHASES = {data: pair[0] for data, pair in _MADE.items()}
ETA_STARS = {data: pair[1] for data, pair in _MADE.items()}
