"""The demo: a small network is predicted, measured, trained at several learning rates and watched."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope import data, losses
from normscope.curvature import measure
from normscope.loss_kinds import CROSS_ENTROPY, SQUARED
from normscope.monitor import Monitor
from normscope.prediction import predict
from normscope.training import Training, accuracy, train

# Learning rates of the trainings as multiples of the measured eta*.
SHARES = (0.25, 0.5, 1.0, 2.0, 4.0)
STEPS = 60
BATCH = 128
MOMENTUM = 0.9
# With BatchNorm and without; and the loss with which eta* is no end of training.
CASES = (("batch", SQUARED), ("none", SQUARED), ("batch", CROSS_ENTROPY))
_LOSSES: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    SQUARED: ("half_mse", losses.half_mse),
    CROSS_ENTROPY: ("cross_entropy", losses.cross_entropy),
}
_EVERY = 10


@dataclass(frozen=True)
class DemoRun:
    """One training at `share` times the measured eta*, with its accuracy on test images."""

    share: float
    lr: float
    training: Training
    test_accuracy: float


@dataclass(frozen=True)
class DemoCase:
    """One network with one loss: eta* predicted and measured, the first guess, and the trainings.

    Args:
        norm: "batch" or "none".
        loss: name of the kind of the loss, "squared" or "cross_entropy".
        predicted, measured: eta* from theory, and from four batches.
        first_guess: the learning rate that `measure` names to start with.
    """

    norm: str
    loss: str
    predicted: float
    measured: float
    first_guess: float
    runs: tuple[DemoRun, ...]


@dataclass(frozen=True)
class WatchedRun:
    """The first case, trained at the first guess with a Monitor, and once more without.

    Args:
        unchanged: whether both end with the same parameters and buffers, bit for bit.
        steps, losses, critical_rates: of each snapshot.
        warnings: the verdicts of the last snapshot that are not good.
    """

    lr: float
    test_accuracy: float
    unchanged: bool
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    critical_rates: tuple[float, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class DemoResult:
    """Everything that the demo found."""

    seed: int
    cases: tuple[DemoCase, ...]
    watched: WatchedRun


def total_steps(steps: int = STEPS) -> int:
    """The number of training steps of the whole demo, for a progress bar; diverged runs stop earlier."""
    return (len(CASES) * len(SHARES) + 2) * steps


def network(norm: str, seed: int) -> nn.Sequential:
    """Two convolutions and a classifier for images of 8x8 pixels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, second = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, stride=2, padding=1)
        classify = nn.Linear(256, 10)
    norms = [nn.BatchNorm2d(32), nn.BatchNorm2d(64)] if norm == "batch" else [nn.Identity(), nn.Identity()]
    layers = (first, norms[0], nn.ReLU(), second, norms[1], nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), classify)
    return nn.Sequential(*layers)


def run_demo(
    *,
    seed: int,
    steps: int = STEPS,
    on_run: Callable[[str], None] = lambda label: None,
    on_step: Callable[[int], None] = lambda step: None,
) -> DemoResult:
    """Predict, measure and train a small network on the digits, with and without BatchNorm, and watch one run.

    Args:
        seed: seed of the data split, the batches and the initial weights. All cases share the three.
        steps: steps of each training.
        on_run: called with a label before each training.
        on_step: called after each step with its number.
    """
    digits = data.digits(seed=seed)
    batches = list(data.batches(digits.x_train, digits.y_train, batch_size=BATCH, seed=seed, steps=steps))
    cases = tuple(_case(norm, loss, seed, digits, batches, on_run, on_step) for norm, loss in CASES)
    return DemoResult(seed, cases, _watched(cases[0], seed, digits, batches, on_run, on_step))


def _case(
    norm: str,
    loss: str,
    seed: int,
    digits: data.Dataset,
    batches: Sequence[tuple[Tensor, Tensor]],
    on_run: Callable[[str], None],
    on_step: Callable[[int], None],
) -> DemoCase:
    name, loss_fn = _LOSSES[loss]
    start = network(norm, seed)
    predicted = predict(start, (1, 8, 8), loss=name, batch_size=BATCH, momentum=MOMENTUM)
    measured = measure(start, loss_fn, batches[:4], momentum=MOMENTUM, hessian=False)
    runs = []
    for share in SHARES:
        on_run(f"{norm}, {loss}, {share:g} eta*")
        model = copy.deepcopy(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=share * measured.eta_star, momentum=MOMENTUM)
        training = train(model, loss_fn, batches, optimizer, seed=seed, on_step=on_step)
        runs.append(DemoRun(share, share * measured.eta_star, training, _right(model, digits)))
    return DemoCase(norm, loss, predicted.eta_star, measured.eta_star, measured.first_guess, tuple(runs))


def _watched(
    case: DemoCase,
    seed: int,
    digits: data.Dataset,
    batches: Sequence[tuple[Tensor, Tensor]],
    on_run: Callable[[str], None],
    on_step: Callable[[int], None],
) -> WatchedRun:
    _, loss_fn = _LOSSES[case.loss]
    ends: list[nn.Module] = []
    monitor: Monitor | None = None
    for watched in (False, True):
        on_run("the first guess, watched" if watched else "the first guess")
        model = network(case.norm, seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=case.first_guess, momentum=MOMENTUM)
        monitor = Monitor(model, loss_fn, every=_EVERY, budget=None) if watched else None
        train(model, loss_fn, batches, optimizer, seed=seed, on_step=on_step, monitor=monitor)
        ends.append(model)
    assert monitor is not None
    plain, looked_at = (model.state_dict() for model in ends)
    unchanged = all(torch.equal(value, looked_at[name]) for name, value in plain.items())
    table = monitor.frame()
    return WatchedRun(
        lr=case.first_guess,
        test_accuracy=_right(ends[1], digits),
        unchanged=unchanged,
        steps=tuple(map(int, table["step"])),
        losses=tuple(map(float, table["loss"])),
        critical_rates=tuple(map(float, table["critical_rate"])),
        warnings=tuple(verdict.text for verdict in monitor.verdicts if verdict.good is False),
    )


@torch.no_grad()
def _right(model: nn.Module, digits: data.Dataset) -> float:
    return accuracy(model.eval(), digits.x_test, digits.y_test)
