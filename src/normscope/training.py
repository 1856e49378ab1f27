"""A plain training loop; divergence is a result, not an exception."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from normscope.objective import Objective
from normscope.replaying import ReplayedGradient
from normscope.results import plain, write_json
from normscope.results.environment import environment
from normscope.results.reporting import Reportable
from normscope.training_step import add_gradient, clip_gradient, diverged, take_step

if TYPE_CHECKING:
    import pandas as pd


SCHEMA = 1


class Monitors(Protocol):
    """The interface of a monitor that `train` uses."""

    def step(self, x: Any, y: Any = None, optimizer: Any = None) -> object:
        """Called at every step, between the gradient and the optimizer's step."""


@dataclass(frozen=True)
class Training(Reportable):
    """The result of a training.

    losses: the loss of each step's batch, before that step. evaluations: one dict for each evaluation, with its "step".
    diverged_at: the first step whose loss was not finite, or above `explode` times a positive first loss; None if there
    is none. seconds: duration. settings: optimizer, loss and options. environment: versions and device.
    """

    losses: tuple[float, ...]
    evaluations: tuple[dict[str, float], ...]
    diverged_at: int | None
    seconds: float
    settings: dict[str, Any]
    environment: dict[str, str | int]

    @property
    def steps(self) -> int:
        """The number of steps with a loss."""
        return len(self.losses)

    @property
    def final_loss(self) -> float:
        """The loss of the last step; nan without any."""
        return self.losses[-1] if self.losses else math.nan

    def frame(self) -> "pd.DataFrame":
        """A table with one row a step: step, loss, and the evaluations, whose "loss" becomes "loss_evaluated"."""
        import pandas as pd

        frame = pd.DataFrame({"step": range(self.steps), "loss": self.losses})
        if not self.evaluations:
            return frame
        return frame.merge(pd.DataFrame(self.evaluations), on="step", how="outer", suffixes=("", "_evaluated"))

    def save(self, path: str | Path) -> None:
        """Write plain JSON, with nan and infinities as strings, which every reader of JSON takes."""
        write_json(path, self.plain())

    def plain(self) -> dict[str, Any]:
        """The result as plain JSON."""
        return {"kind": "training", "schema": SCHEMA} | plain(asdict(self))

    def _sections(self) -> Sequence[Any]:
        from normscope.report.sections.training import training_section

        return [training_section("Training", self.plain())]


def train(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Any] | None,
    batches: Iterable[Any],
    optimizer: torch.optim.Optimizer,
    *,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    scheduler: Any = None,
    accumulate: int = 1,
    clip: float | Callable[[list[nn.Parameter]], Any] | None = None,
    scaler: Any = None,
    averaged_model: Any = None,
    training_step: Callable[[nn.Module, Any, Any], Any] | None = None,
    autocast: torch.dtype | None = None,
    steps: int | None = None,
    seed: int = 0,
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
    every: int = 100,
    explode: float = 1e6,
    check_every: int = 1,
    on_step: Callable[[int], None] | None = None,
    monitor: Monitors | None = None,
    replay: bool = False,
) -> Training:
    """Train `model` in place.

    Training is reproducible to the bit on one CPU with one number of threads. On a GPU it is only under
    `torch.use_deterministic_algorithms(True)`, since torch's default kernels are not deterministic. The model is in
    train mode; afterwards, also after an exception, every layer has its former mode.

    Args:
        model: any module; it is trained in place.
        loss_fn: loss_fn(outputs, targets) returns the scalar loss; None if the model or `forward` returns the loss.
        batches: any iterable of batches, on the model's device.
        optimizer: the optimizer that trains.
        forward: forward(model, batch) returns the outputs, or without loss_fn the loss.
        scheduler: learning-rate scheduler, stepped after every step of the optimizer.
        accumulate: number of batches whose gradients are averaged for one step.
        clip: largest norm of the gradient, or a function that clips a list of parameters.
        scaler: a torch.amp.GradScaler.
        averaged_model: a torch.optim.swa_utils.AveragedModel, or another object with update_parameters(model).
        training_step: training_step(model, batch, optimizer) makes a whole step and returns the loss.
        autocast: dtype of mixed precision.
        steps: largest number of steps; None takes all batches.
        seed: seed of the random numbers that the model draws (dropout); torch's global generators do not move.
        evaluate: evaluate(model) returns a dict of numbers; called in eval mode every `every` steps and at the end.
        every: steps between two evaluations.
        explode: a loss above this multiple of a positive first loss counts as divergence. The default of 1e6 is a
            choice: Wei et al. 2019 mark runs that exploded, and give no number.
        check_every: steps between two checks for divergence; on a GPU each check waits for the device. The step
            reported is exact all the same.
        on_step: called after each step with its number, for a progress bar.
        monitor: a `normscope.Monitor`, called between the gradient and the optimizer's step.
        replay: on a GPU, record forward and backward once and replay them; `ReplayedGradient` lists the conditions.
            Without effect on other devices.

    Returns:
        The losses, evaluations and the step of divergence.

    Raises:
        ValueError: `every` or `check_every` below 1, or a loss that is not a scalar.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> sgd = torch.optim.SGD(layer.parameters(), lr=10.0)
        >>> batch = (torch.ones(4, 1), torch.zeros(4, 1))
        >>> train(layer, nn.functional.mse_loss, [batch] * 100, sgd).diverged_at
        3
    """
    if every < 1 or check_every < 1:
        raise ValueError(f"every and check_every count steps, from 1 on; got {every} and {check_every}.")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    objective = Objective(loss_fn, forward)

    def eager(parts: list[Any]) -> Tensor:
        optimizer.zero_grad()
        return add_gradient(objective, model, parts, device, scaler=scaler, autocast=autocast)

    def update(parts: list[Any]) -> None:
        clip_gradient(model, optimizer, clip, scaler)
        if monitor is not None:
            monitor.step(parts[-1], optimizer=optimizer)
        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(lambda: float(gradient(parts)))
        else:
            take_step(optimizer, scaler)
        if scheduler is not None:
            scheduler.step()
        if averaged_model is not None:
            averaged_model.update_parameters(model)

    history = _History(explode)
    evaluations: list[dict[str, float]] = []
    settings = _settings(objective.name, optimizer, steps=steps, seed=seed, explode=explode)
    started = time.perf_counter()
    with seeded_on(seed, device), modes_kept(model):
        model.train()
        replayed = replay and device.type == "cuda"
        updated = (p for group in optimizer.param_groups for p in group["params"])
        parameters = list(dict.fromkeys((*model.parameters(), *updated)))
        gradient = ReplayedGradient(eager, parameters, device) if replayed else eager
        step = -1
        for step, parts in enumerate(islice(grouped(batches, accumulate), steps)):
            if evaluate is not None and step % every == 0:
                evaluations.append({"step": step} | _evaluated(model, evaluate, device))
            if training_step is not None:
                with _before_its_step(optimizer, monitor, parts[-1]):
                    history.add(torch.as_tensor(training_step(model, parts[0], optimizer)).detach())
            else:
                history.add(gradient(parts))
            if (step + 1) % check_every == 0 and history.diverged_at() is not None:
                break
            if training_step is None:
                update(parts)
            if on_step is not None:
                on_step(step)
        diverged_at = history.diverged_at()
        if evaluate is not None and diverged_at is None:
            evaluations.append({"step": step + 1} | _evaluated(model, evaluate, device))
    last = len(history.losses) if diverged_at is None else diverged_at
    return Training(
        losses=tuple(history.losses[: last + 1]),
        evaluations=tuple(evaluation for evaluation in evaluations if evaluation["step"] <= last),
        diverged_at=diverged_at,
        seconds=time.perf_counter() - started,
        settings=settings,
        environment=environment(device),
    )


def grouped(batches: Iterable[Any], count: int) -> Iterator[list[Any]]:
    """The batches of each step; the last group may be shorter."""
    source = iter(batches)
    while parts := list(islice(source, count)):
        yield parts


@contextmanager
def _before_its_step(optimizer: torch.optim.Optimizer, monitor: Monitors | None, batch: Any) -> Iterator[None]:
    """While this context lasts, the monitor is called once, right before the first step of the optimizer.

    It is for a training_step of the user's, which steps the optimizer itself.
    """
    if monitor is None:
        yield
        return

    def measure(*_: Any) -> None:
        hook.remove()
        monitor.step(batch, optimizer=optimizer)

    hook = optimizer.register_step_pre_hook(measure)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def seeded_on(seed: int, device: torch.device) -> Iterator[None]:
    """While this context lasts, the generators of the CPU and of `device` start from `seed`; they are put back after.

    torch.manual_seed would also move the generators of all other devices.
    """
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_cuda else []):
        torch.default_generator.manual_seed(seed)
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """While this context lasts, modes may change; afterwards every layer has its former one."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


class _History:
    """The losses, moved to the host only when divergence is checked."""

    def __init__(self, explode: float) -> None:
        self.losses: list[float] = []
        self._on_device: list[Tensor] = []
        self._explode = explode
        self._checked = 0

    def add(self, loss: Tensor) -> None:
        self._on_device.append(loss)

    def diverged_at(self) -> int | None:
        if self._on_device:
            self.losses += torch.stack(self._on_device).tolist()
            self._on_device.clear()
        for step in range(self._checked, len(self.losses)):
            if diverged(self.losses[step], self.losses[0], self._explode):
                return step
            self._checked = step + 1
        return None


@torch.no_grad()
def _evaluated(
    model: nn.Module, evaluate: Callable[[nn.Module], dict[str, float]], device: torch.device
) -> dict[str, float]:
    """The numbers of an evaluation in eval mode; its random draws do not move the training's generators."""
    model.eval()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        numbers = {key: float(value) for key, value in evaluate(model).items()}
    model.train()
    return numbers


def _settings(loss: str, optimizer: torch.optim.Optimizer, **rest: Any) -> dict[str, Any]:
    """The present numbers of the parameter groups (a list if the groups differ), with loss, optimizer and options."""
    numbers: dict[str, Any] = {}
    for key in optimizer.defaults:
        # A copied optimizer has defaults that its groups lack: torch adds "differentiable" to the defaults alone.
        values = [group[key] for group in optimizer.param_groups if key in group]
        if values and all(isinstance(value, (bool, int, float, tuple)) for value in values):
            numbers[key] = values[0] if len(set(values)) == 1 else values
    return {"loss": loss, "optimizer": type(optimizer).__name__, **numbers, **rest}


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor, *, batch_size: int = 1000) -> float:
    """The share of samples whose largest output is their class, in the model's present mode."""
    right = sum(
        int((model(a).argmax(1) == b).sum()) for a, b in zip(x.split(batch_size), y.split(batch_size), strict=True)
    )
    return right / len(y)
