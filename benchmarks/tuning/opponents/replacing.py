"""Optimizers that need no learning rate and take the place of the task's own; ranked apart.

| name | with a task of SGD | with a task of Adam, AdamW, RMSprop | settings tried |
|---|---|---|---|
| prodigy | Prodigy | Prodigy | d_coef 1, 0.5, 2 |
| dadaptation | DAdaptSGD | DAdaptAdam | lr 1, 0.5, 2 |
| schedule-free | SGDScheduleFree, lr 1 | AdamWScheduleFree, lr 0.0025 | lr times 1, 0.2, 4 |
| dog | DoG and its averager | the same | lr 1, 0.5, 2 |
| dowg | DoWG | the same | none |
| momo | Momo, lr 1 | MomoAdam, lr 0.01 | lr times 1, 0.2, 4 |
| mechanic | mechanize(SGD), lr 1 | mechanize(Adam), lr 1 | s_decay 0.01, 0, 0.1 |

The first setting is the package's default, the others serve to calibrate on other tasks. Weight decay and betas are the
task's. The schedule of the task multiplies the rate; Schedule-Free, DoG and DoWG run without one, as their authors say.
Where weights are averaged, BatchNorm is recalibrated on the last 20 training batches before evaluation.
"""

import copy
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from task import OPTIMIZERS, Batch, Parts, Task
from torch import Tensor, nn
from training import Rule, batch_norms

VENDOR = Path(__file__).resolve().parents[1] / "vendor"
RECALIBRATION = 20
SETTINGS: dict[str, tuple[float, ...]] = {
    "prodigy": (1.0, 0.5, 2.0),
    "dadaptation": (1.0, 0.5, 2.0),
    "schedule-free": (1.0, 0.2, 4.0),
    "dog": (1.0, 0.5, 2.0),
    "dowg": (1.0,),
    "momo": (1.0, 0.2, 4.0),
    "mechanic": (0.01, 0.0, 0.1),
}


def use_vendor() -> None:
    """Let the opponents' packages be imported from the folder `vendor`."""
    if str(VENDOR) not in sys.path:
        sys.path.append(str(VENDOR))


class Unscheduled(Rule):
    """An optimizer that runs without a schedule."""

    scheduled = False


class WithLoss(Rule):
    """Momo takes the loss of the batch."""

    def step(self, loss: Tensor, batch: Batch) -> None:
        self.optimizer.step(loss=loss)  # type: ignore[call-arg]


class ScheduleFree(Unscheduled):
    """Evaluates at the average of the iterates, with BatchNorm recalibrated."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self.seen: deque[Batch] = deque(maxlen=RECALIBRATION)
        optimizer.train()

    def step(self, loss: Tensor, batch: Batch) -> None:
        self.seen.append(batch)
        self.optimizer.step()

    @contextmanager
    def trained(self, parts: Parts) -> Iterator[Parts]:
        optimizer: Any = self.optimizer
        optimizer.eval()
        try:
            yield replace(parts, model=recalibrated(parts, parts.model, self.seen))
        finally:
            optimizer.train()


class Averaged(Unscheduled):
    """Evaluates a polynomial-decay average of the weights, with BatchNorm recalibrated."""

    def __init__(self, optimizer: torch.optim.Optimizer, averager: Any) -> None:
        super().__init__(optimizer)
        self.averager = averager
        self.seen: deque[Batch] = deque(maxlen=RECALIBRATION)

    def step(self, loss: Tensor, batch: Batch) -> None:
        self.seen.append(batch)
        self.optimizer.step()
        self.averager.step()

    @contextmanager
    def trained(self, parts: Parts) -> Iterator[Parts]:
        yield replace(parts, model=recalibrated(parts, self.averager.averaged_model, self.seen))


def recalibrated(parts: Parts, model: nn.Module, batches: Any) -> nn.Module:
    """A copy of `model` whose BatchNorm layers hold the mean statistics of `batches`; without them, the model."""
    if not batch_norms(model) or not batches:
        return model
    twin = copy.deepcopy(model).train()
    for module in batch_norms(twin):
        module.reset_running_stats()
        module.momentum = None
    with torch.no_grad():
        for batch in batches:
            replace(parts, model=twin).outputs(batch)
    return twin


def make_rule(name: str, setting: float, task: Task, parts: Parts) -> Rule:
    """The optimizer `name` with its one setting, for a task."""
    use_vendor()
    parameters = [p for p in parts.model.parameters() if p.requires_grad]
    kind, defaults = OPTIMIZERS[task.optimizer]
    settings: dict[str, Any] = defaults | dict(task.settings)
    decay = settings.get("weight_decay", 0.01 if task.optimizer == "adamw" else 0.0)
    betas = settings.get("betas", (0.9, 0.999))
    is_sgd = kind is torch.optim.SGD
    if name == "prodigy":
        from prodigyopt import Prodigy

        return Rule(Prodigy(parameters, d_coef=setting, betas=betas, weight_decay=decay))
    if name == "dadaptation":
        import dadaptation

        if is_sgd:
            momentum = settings.get("momentum", 0.0)
            return Rule(dadaptation.DAdaptSGD(parameters, lr=setting, momentum=momentum, weight_decay=decay))
        decoupled = task.optimizer == "adamw"
        return Rule(dadaptation.DAdaptAdam(parameters, lr=setting, betas=betas, weight_decay=decay, decouple=decoupled))
    if name == "schedule-free":
        import schedulefree

        if is_sgd:
            return ScheduleFree(schedulefree.SGDScheduleFree(parameters, lr=setting, weight_decay=decay))
        return ScheduleFree(schedulefree.AdamWScheduleFree(parameters, lr=0.0025 * setting, weight_decay=decay))
    if name == "dog":
        from dog import DoG, PolynomialDecayAverager

        return Averaged(DoG(parameters, lr=setting, weight_decay=decay), PolynomialDecayAverager(parts.model))
    if name == "dowg":
        from dowg import DoWG

        return Unscheduled(DoWG(parameters))
    if name == "momo":
        from momo import Momo, MomoAdam

        if is_sgd:
            return WithLoss(Momo(parameters, lr=setting, weight_decay=decay))
        return WithLoss(MomoAdam(parameters, lr=0.01 * setting, betas=betas, weight_decay=decay))
    if name == "mechanic":
        from mechanic_pytorch import mechanize

        return Rule(mechanize(kind, s_decay=setting)(parameters, lr=1.0, **settings))
    raise ValueError(f"{name} is none of {', '.join(SETTINGS)}.")
