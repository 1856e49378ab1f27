"""The best learning rate of a grid, and the rate that each adviser names before training.

Curves of a run:

    rate, test_loss, test_accuracy      a grid of learning rates, from one start; nan where training diverged
    predict, measure, critical          eta* by theory, by curvature and by the critical step on the first batch
    range                               the rate of a range test; nan where an adviser names no rate (theory, for Adam)
    at                                  for tasks with "at": the outcome of training at each adviser's own rate

Advisers know the initial network and training batches only.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.papers.experiment import Curves, Experiment, Place

if TYPE_CHECKING:
    import torch

    Network = Callable[[], torch.nn.Module]
    Optimizer = Callable[[torch.nn.Module, float], torch.optim.Optimizer]
    Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]

# Shares of eta* to train at. One half keeps a factor of two to the rate where the quadratic turns unstable. The
# critical rate is along one direction, which is flatter than the steepest one, so half of that. Adam's denominator
# shrinks with the gradients as training goes on, and its eta* with it: a fifth of gradient descent's share.
SHARES = {
    "predict": {"sgd": 0.5, "momentum": 0.5},
    "measure": {"sgd": 0.5, "momentum": 0.5, "adam": 0.1},
    "critical": {"sgd": 0.25, "momentum": 0.25, "adam": 0.05},
    "range": {"sgd": 1.0, "momentum": 1.0, "adam": 1.0},
}
# Advisers in tasks that train at the advised rates. "start" is a share of the critical rate; "settled" is the rate that
# `measure` names: with squared error and momentum, at most half of eta*.
ADVISED = ("start", "predict", "measure", "range")
# Steps in which Adam's second moments gather, at a rate too small to move anything.
GATHERED, STILL = 20, 1e-12


def range_test(losses: Callable[[Iterator[float]], list[float]], rates: np.ndarray) -> float:
    r"""The rate at which a smoothed loss falls fastest while the rate grows from step to step.

        l_t = 0.05 L_t + 0.95 l_{t-1},  ended where l_t > 5 min l;  rate = argmin of dl/dt over t = 10 to the 6th last

    The algorithm and defaults of torch-lr-finder. losses: trains once, with one step for each rate.
    Returns: the rate; nan where too few steps are left.
    """
    raw = losses(iter(rates))
    smooth: list[float] = []
    for loss in raw:
        value = loss if not smooth else 0.05 * loss + 0.95 * smooth[-1]
        if not math.isfinite(value) or (smooth and value > 5 * min(smooth)):
            break
        smooth.append(value)
    kept = np.array(smooth[10:-5])
    return float(rates[10 + int(np.gradient(kept).argmin())]) if len(kept) >= 2 else math.nan


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    import torch

    from normscope.losses import LOSSES
    from normscope.training import accuracy, train

    data, network = _task(settings, seed, place)
    low, high = settings["decades"]
    loss_fn, lrs = LOSSES[settings["loss"]], 10 ** np.arange(low, high, settings["spacing"], dtype=float)
    x_test, y_test = data.x_test[: settings["tests"]], data.y_test[: settings["tests"]]

    def stream() -> "Batches":
        from normscope.data import batches

        return batches(data.x_train, data.y_train, batch_size=settings["batch_size"], seed=seed)

    def optimizer(model: torch.nn.Module, lr: float) -> torch.optim.Optimizer:
        if settings["optimizer"] == "adam":
            return torch.optim.Adam(model.parameters(), lr=lr)
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9 if settings["optimizer"] == "momentum" else 0.0)

    def trained(lr: float) -> tuple[float, float]:
        model = network()
        training = train(
            model, loss_fn, stream(), optimizer(model, lr), steps=settings["steps"], seed=seed,
            check_every=10, on_step=place.tick, replay=True,
        )  # fmt: skip
        if training.diverged_at is not None:
            return math.nan, math.nan
        model.eval()
        with torch.no_grad():
            # In parts of 1000: the first map of 10,000 images in a wide network is 2.6 GB, and processes share a GPU.
            parts = zip(x_test.split(1000), y_test.split(1000), strict=True)
            test = sum(float(loss_fn(model(x), y)) * len(y) for x, y in parts) / len(y_test)
        return (test, accuracy(model, x_test, y_test)) if math.isfinite(test) else (math.nan, math.nan)

    def losses(rates: Iterator[float]) -> list[float]:
        model, seen = network(), list[float]()
        opt = optimizer(model, 1e-7)
        for (x, y), lr in zip(stream(), rates, strict=False):
            place.tick(0)
            for group in opt.param_groups:
                group["lr"] = lr
            opt.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            opt.step()
            seen.append(float(loss.detach()))
            if not math.isfinite(seen[-1]):
                break
        return seen

    results = [trained(float(lr)) for lr in lrs]
    curves: Curves = {
        "rate": list(lrs),
        "test_loss": [loss for loss, _ in results],
        "test_accuracy": [share for _, share in results],
        "range": range_test(losses, np.geomspace(1e-7, 10, 100)),
        **_advised(settings, network, optimizer, loss_fn, stream()),
    }
    if settings.get("at"):
        curves["at"] = {}
        for adviser in ADVISED if settings["at"] is True else settings["at"]:
            rate = named(settings, curves, adviser)
            loss, share = (math.nan, math.nan) if math.isnan(rate) else trained(rate)
            curves["at"][adviser] = {"rate": rate, "test_loss": loss, "test_accuracy": share}
    return curves


def named(settings: Mapping[str, Any], curves: Curves, adviser: str) -> float:
    """The rate to train at; nan where the adviser names no rate."""
    if adviser in ("start", "settled"):
        from normscope.loss_kinds import kind_by_name
        from normscope.losses import LOSSES
        from normscope.stability.first_guess_rates import rate_from_measurement, share_of_critical_rate
        from normscope.stability.optimizer_rules import ADAM, MOMENTUM, PLAIN

        critical, loss_kind = float(curves["critical"]), kind_by_name(LOSSES[settings["loss"]])
        if adviser == "start":
            return share_of_critical_rate(critical, loss_kind)
        descent = {"sgd": PLAIN, "momentum": MOMENTUM, "adam": ADAM}[settings["optimizer"]]
        return rate_from_measurement(critical, float(curves["measure"]), loss_kind, descent)
    return SHARES[adviser].get(settings["optimizer"], math.nan) * float(curves[adviser])


def _task(settings: dict[str, Any], seed: int, place: Place) -> tuple[Any, "Network"]:
    """The data on the device, and a function that makes the same network every time."""
    from normscope import data, models
    from normscope.papers.experiments.vgg import cifar10_on

    sets: dict[str, Callable[[], Any]] = {
        "digits": lambda: data.digits(seed=seed).to(place.device),
        "mnist": lambda: data.mnist(place.root).to(place.device),
        "cifar10": lambda: cifar10_on(place.root, place.device),
    }
    images = sets[settings["data"]]()
    channels, size = images.x_train[0].shape[0], images.x_train[0].shape[-1]
    norm = settings.get("norm", "batch")
    makes: dict[str, Network] = {
        "mlp": lambda: models.MLP(
            images.x_train[0].numel(), width=settings["width"], norm=norm, init="glorot", seed=seed
        ),
        "cnn": lambda: models.CNN(channels, size, channels=tuple(settings["channels"]), norm=norm, seed=seed),
        "vgg11": lambda: models.VGG(11, norm="batch", seed=seed),
        "resnet18": lambda: models.PreActResNet18(norm="batch", seed=seed),
    }
    return images, lambda: place.put(makes[settings["network"]]())


def _advised(
    settings: dict[str, Any],
    network: "Network",
    optimizer: "Optimizer",
    loss_fn: Callable[..., Any],
    stream: "Batches",
) -> dict[str, float]:
    """eta* of the initial network on the first batch; for Adam, after second moments were gathered."""
    from normscope.curvature import Solver, measure
    from normscope.monitor import Monitor
    from normscope.prediction import predict

    batch = x, y = next(stream)
    model = network()
    opt = optimizer(model, STILL)
    adam = settings["optimizer"] == "adam"
    for _ in range(GATHERED if adam else 0):
        a, b = next(stream)
        opt.zero_grad()
        loss_fn(model(a), b).backward()
        opt.step()
    measured = measure(model, loss_fn, batch, optimizer=opt, hessian=False, solver=Solver(tol=0.01)).eta_star
    opt.zero_grad()
    loss_fn(model(x), y).backward()
    for group in opt.param_groups:
        # The search for the critical rate begins at this rate.
        group["lr"] = measured
    monitor = Monitor(model, loss_fn, every=1, measure=["critical"], budget=None)
    monitor.step(x, y, opt)
    critical = monitor.records[-1].results["critical"]
    predicted = math.nan
    if not adam:
        momentum = 0.9 if settings["optimizer"] == "momentum" else 0.0
        inputs, initial = x.cpu(), network().cpu()
        # Use the batch's overlaps where that is affordable: a batch of images through a deep network is a large kernel.
        known = inputs if settings["network"] in ("mlp", "cnn") else None
        shape = tuple(inputs.shape[1:])
        predicted = predict(initial, shape, settings["loss"], len(inputs), momentum=momentum, batch=known).eta_star
    return {"predict": predicted, "measure": measured, "critical": critical.eta}


_SHARED = {"batch_size": 128, "spacing": 0.25, "width": 128, "channels": [8, 16, 16]}
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {"steps": 300, "tests": 10_000, **_SHARED},
    "small": {"steps": 100, "tests": 1_000, **_SHARED},
}
_SHORT = {"steps": 150, "tests": 2_000}
_WIDE, _ADAM = {"decades": [-4.0, 1.51]}, {"decades": [-5.0, 0.51]}
TASKS: dict[str, dict[str, Any]] = {
    "digits MLP, squared error, SGD": {"data": "digits", "network": "mlp", "loss": "half_mse", "optimizer": "sgd"},
    "digits MLP, squared error, momentum": {
        "data": "digits", "network": "mlp", "loss": "half_mse", "optimizer": "momentum",
    },
    "digits MLP, cross-entropy, momentum": {
        "data": "digits", "network": "mlp", "loss": "cross_entropy", "optimizer": "momentum",
    },
    "digits MLP, cross-entropy, Adam": {
        "data": "digits", "network": "mlp", "loss": "cross_entropy", "optimizer": "adam",
    },
    "MNIST MLP, squared error, momentum": {
        "data": "mnist", "network": "mlp", "loss": "half_mse", "optimizer": "momentum", **_SHORT,
    },
    "MNIST CNN, cross-entropy, momentum": {
        "data": "mnist", "network": "cnn", "loss": "cross_entropy", "optimizer": "momentum", **_SHORT,
    },
    "MNIST CNN, cross-entropy, Adam": {
        "data": "mnist", "network": "cnn", "loss": "cross_entropy", "optimizer": "adam", **_SHORT,
    },
    "CIFAR-10 CNN, squared error, momentum": {
        "data": "cifar10", "network": "cnn", "loss": "half_mse", "optimizer": "momentum",
        "channels": [30, 60, 90], "steps": 1_000,
    },
    "CIFAR-10 VGG-11, cross-entropy, momentum": {
        "data": "cifar10", "network": "vgg11", "loss": "cross_entropy", "optimizer": "momentum", "steps": 1_000,
    },
    "CIFAR-10 PreAct-ResNet18, cross-entropy, momentum": {
        "data": "cifar10", "network": "resnet18", "loss": "cross_entropy", "optimizer": "momentum", "steps": 500,
    },
}  # fmt: skip


def _experiment(data: str, cuda: float, cpu: float) -> Experiment:
    tasks = {name: {**(_ADAM if "Adam" in name else _WIDE), **task} for name, task in TASKS.items()}
    return Experiment(
        name=f"advice-{data}",
        what=f"learning rates on {data}: a grid, and what theory, curvature, critical step and a range test name",
        settings=SETTINGS,
        cells={name: task for name, task in tasks.items() if task["data"] == data},
        run=run,
        seconds={("paper", "cuda"): cuda, ("paper", "cpu"): cpu, ("small", "cpu"): cpu / 3, ("small", "cuda"): cuda},
        data=None if data == "digits" else data,
    )


ADVICE = {
    "digits": _experiment("digits", 30.0, 20.0),
    "mnist": _experiment("mnist", 40.0, 90.0),
    "cifar10": _experiment("cifar10", 80.0, 20_000.0),
}
