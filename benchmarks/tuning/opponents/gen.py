"""GeN: the rate of the task's own optimizer, set again every eight steps by a parabola through three losses.

The three forward passes cost one step, so that of the task's steps eight ninths are left for training. The package
starts from the rate of the optimizer; SETTINGS multiplies the defaults of its documentation.
"""

import contextlib
import importlib.util
import io
import sys
import types
from typing import Any

import numpy as np
import torch
from opponents.named import Whole
from opponents.replacing import use_vendor
from task import OPTIMIZERS, Batch, Parts, Task
from torch import Tensor
from training import Rule, endless, factor

EVERY = 8
SETTINGS = (1.0, 10.0, 100.0)
_SGD, _ADAM = 1e-3, 1e-4


def _r2_score(y: Any, fitted: Any) -> float:
    """The share of variance explained, as scikit-learn defines it."""
    y, fitted = np.asarray(y), np.asarray(fitted)
    return float(1 - ((y - fitted) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def _lr_parabola() -> Any:
    """The package's function; where scikit-learn is not installed, `r2_score` above takes its place."""
    use_vendor()
    if importlib.util.find_spec("sklearn") is None and "sklearn.metrics" not in sys.modules:
        metrics = types.ModuleType("sklearn.metrics")
        metrics.r2_score = _r2_score  # type: ignore[attr-defined]
        sys.modules["sklearn"], sys.modules["sklearn.metrics"] = types.ModuleType("sklearn"), metrics
    from GeN import lr_parabola

    return lr_parabola


def left(task: Task) -> int:
    """The steps that are left for training."""
    return task.steps * EVERY // (EVERY + 1)


class GeN(Rule):
    """The task's optimizer with its rate set by `lr_parabola`."""

    scheduled = False

    def __init__(self, task: Task, parts: Parts, setting: float) -> None:
        is_sgd = OPTIMIZERS[task.optimizer][0] is torch.optim.SGD
        super().__init__(task.optimizer_of(parts.model, setting * (_SGD if is_sgd else _ADAM)))
        self.set_rate = _lr_parabola()
        self.whole = Whole(parts)
        self.pairs = ((Pair(batch), batch[1]) for batch in endless(parts.batches))
        self.schedule, self.steps, self.made = task.schedule, left(task), 0

    def step(self, loss: Tensor, batch: Batch) -> None:
        self.made += 1
        if self.made % EVERY == 0:
            scale = factor(self.schedule, self.made, self.steps)
            options: dict[str, Any] = {"tr_iter": self.pairs, "device": "cpu", "task": "image_cls", "scale": scale}
            with contextlib.redirect_stdout(io.StringIO()):
                self.set_rate(self.whole, self.optimizer, criterion=self.whole.criterion, **options)
        self.optimizer.step()


class Pair(tuple):  # type: ignore[type-arg]
    """A batch with the one method that the package calls on inputs."""

    def to(self, device: Any) -> "Pair":
        return self


def make_rule(setting: float, task: Task, parts: Parts) -> Rule:
    """GeN at work on a task."""
    return GeN(task, parts, setting)
