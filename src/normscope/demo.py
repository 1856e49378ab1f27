"""The demo: small trainings with and without BatchNorm, on data that need no download."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope import data, losses, models
from normscope.training import Training, accuracy, train

DIGITS_DEPTH = 6
DIGITS_STEPS = 300
DIGITS_RATES = (0.5, 3.0)
DLN_STEPS = 1500
DLN_RATE = 1e-6
NORMS = ("none", "batch")


@dataclass(frozen=True)
class DemoRun:
    """One training, with its test loss and, for the digits, its test accuracy."""

    task: str
    depth: int
    norm: str
    lr: float
    seed: int
    training: Training
    test_loss: float
    test_accuracy: float | None


def total_steps(digits_steps: int = DIGITS_STEPS, dln_steps: int = DLN_STEPS) -> int:
    """The number of steps of the whole demo, for a progress bar; diverged runs stop earlier."""
    return len(NORMS) * (len(DIGITS_RATES) * digits_steps + dln_steps)


def run_demo(
    *,
    seed: int,
    digits_steps: int = DIGITS_STEPS,
    dln_steps: int = DLN_STEPS,
    on_run: Callable[[str], None] = lambda label: None,
    on_step: Callable[[int], None] = lambda step: None,
) -> list[DemoRun]:
    """Train an MLP on the digits (two learning rates) and the deep linear network, with and without BatchNorm.

    Args:
        seed: seed of the data split, the batches, A, X and the initial weights; networks that differ in the normalizer
            only share them.
        digits_steps, dln_steps: steps of each training on the digits, and of the deep linear network.
        on_run: called with a label before each training.
        on_step: called after each step with its number.
    """
    runs = []
    for lr in DIGITS_RATES:
        for norm in NORMS:
            on_run(f"digits MLP, norm={norm}, lr={lr:g}")
            runs.append(_digits(norm, lr, seed, digits_steps, on_step))
    for norm in NORMS:
        on_run(f"deep linear network, norm={norm}")
        runs.append(_deep_linear(norm, seed, dln_steps, on_step))
    return runs


def _digits(norm: str, lr: float, seed: int, steps: int, on_step: Callable[[int], None]) -> DemoRun:
    digits = data.digits(seed=seed)
    model = models.MLP(64, 10, width=100, depth=DIGITS_DEPTH, norm=norm, init="glorot", seed=seed)
    stream = data.batches(digits.x_train, digits.y_train, batch_size=128, seed=seed, steps=steps)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    training = train(model, losses.cross_entropy, stream, optimizer, seed=seed, on_step=on_step)
    test_loss = _test_loss(model, losses.cross_entropy, digits)
    right = accuracy(model, digits.x_test, digits.y_test)
    return DemoRun("digits", DIGITS_DEPTH, norm, lr, seed, training, test_loss, right)


def _deep_linear(norm: str, seed: int, steps: int, on_step: Callable[[int], None]) -> DemoRun:
    linear = data.gaussian(seed=seed)
    model = models.DLN(norm=norm, seed=seed)
    stream = data.batches(linear.x_train, linear.y_train, batch_size=len(linear.x_train), seed=seed, steps=steps)
    optimizer = torch.optim.SGD(model.parameters(), lr=DLN_RATE)
    training = train(model, losses.half_sse, stream, optimizer, seed=seed, on_step=on_step)
    test_loss = _test_loss(model, losses.half_sse, linear)
    return DemoRun("dln", len(model.linears), norm, DLN_RATE, seed, training, test_loss, None)


@torch.no_grad()
def _test_loss(model: nn.Module, loss_fn: Callable[[Tensor, Tensor], Tensor], dataset: data.Dataset) -> float:
    model.eval()
    return loss_fn(model(dataset.x_test), dataset.y_test).item()
