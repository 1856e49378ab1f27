"""Tasks that had no part in the rule for the first guess of a learning rate; curves as in `advice.py`, with "at"."""

from typing import Any

from normscope.papers.experiment import Experiment
from normscope.papers.experiments.advice import run

_SHARED: dict[str, Any] = {"batch_size": 128, "spacing": 0.25, "width": 128, "channels": [8, 16, 16], "at": True}
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {"steps": 150, "tests": 5_000, **_SHARED},
    "small": {"steps": 50, "tests": 1_000, **_SHARED},
}
_SQUARED = {"loss": "half_mse", "decades": [-3.0, 0.51]}
_ENTROPY = {"loss": "cross_entropy", "decades": [-3.0, 1.01]}
_ADAM = {"optimizer": "adam", "decades": [-4.0, 0.01]}

NORMALIZED: dict[str, dict[str, Any]] = {
    "MNIST MLP, cross-entropy, SGD": {"data": "mnist", "network": "mlp", **_ENTROPY, "optimizer": "sgd"},
    "MNIST MLP, squared error, Adam": {"data": "mnist", "network": "mlp", **_SQUARED, **_ADAM},
    "MNIST MLP with LayerNorm, cross-entropy, momentum": {
        "data": "mnist", "network": "mlp", **_ENTROPY, "optimizer": "momentum", "norm": "layer",
    },
    "MNIST CNN, squared error, momentum": {"data": "mnist", "network": "cnn", **_SQUARED, "optimizer": "momentum"},
    "MNIST CNN with GroupNorm, squared error, SGD": {
        "data": "mnist", "network": "cnn", **_SQUARED, "optimizer": "sgd", "norm": "group",
    },
    "CIFAR-10 MLP, cross-entropy, momentum": {
        "data": "cifar10", "network": "mlp", **_ENTROPY, "optimizer": "momentum",
    },
    "CIFAR-10 MLP with LayerNorm, squared error, momentum": {
        "data": "cifar10", "network": "mlp", **_SQUARED, "optimizer": "momentum", "norm": "layer",
    },
    "CIFAR-10 CNN, cross-entropy, Adam": {"data": "cifar10", "network": "cnn", **_ENTROPY, **_ADAM},
}  # fmt: skip
PLAIN: dict[str, dict[str, Any]] = {
    "MNIST MLP without normalizer, squared error, momentum": {
        "data": "mnist", "network": "mlp", **_SQUARED, "optimizer": "momentum", "norm": "none",
    },
    "MNIST MLP without normalizer, cross-entropy, momentum": {
        "data": "mnist", "network": "mlp", **_ENTROPY, "optimizer": "momentum", "norm": "none",
    },
}  # fmt: skip
_AGAIN: dict[str, Any] = {"data": "digits", "channels": [16, 32], "at": ["settled", "predict", "measure", "range"]}
# Tasks trained after the rule of `measure` was changed because of the tasks above.
AGAIN: dict[str, dict[str, Any]] = {
    "digits CNN, squared error, momentum": {**_AGAIN, "network": "cnn", **_SQUARED, "optimizer": "momentum"},
    "digits CNN, squared error, SGD": {**_AGAIN, "network": "cnn", **_SQUARED, "optimizer": "sgd"},
    "digits MLP with RMSNorm, squared error, momentum": {
        **_AGAIN, "network": "mlp", **_SQUARED, "optimizer": "momentum", "norm": "rms",
    },
    "digits CNN with GroupNorm, cross-entropy, momentum": {
        **_AGAIN, "network": "cnn", **_ENTROPY, "optimizer": "momentum", "norm": "group",
    },
    "digits CNN, cross-entropy, Adam": {**_AGAIN, "network": "cnn", **_ENTROPY, **_ADAM},
}  # fmt: skip
TASKS = {**NORMALIZED, **PLAIN, **AGAIN}


def _experiment(data: str, cuda: float, cpu: float) -> Experiment:
    return Experiment(
        name=f"advice-held-out-{data}",
        what=f"learning rates on {data}: a grid, and training at the rates that are advised",
        settings=SETTINGS,
        cells={name: task for name, task in TASKS.items() if task["data"] == data},
        run=run,
        seconds={("paper", "cuda"): cuda, ("paper", "cpu"): cpu, ("small", "cpu"): cpu / 3, ("small", "cuda"): cuda},
        data=None if data == "digits" else data,
    )


HELD_OUT = {
    "mnist": _experiment("mnist", 40.0, 80.0),
    "cifar10": _experiment("cifar10", 40.0, 120.0),
    "digits": _experiment("digits", 40.0, 60.0),
}
