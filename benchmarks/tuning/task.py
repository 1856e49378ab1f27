"""A task of the race: one training whose learning rate is to be found.

A file `tasks/<name>.py` (or `tasks_held_out/<name>.py`) defines `TASK`:

    from batches import chunks, shuffled
    from data import digits
    from task import Parts, Task, accuracy

    def make(seed: int) -> Parts:
        data = digits()
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        return Parts(
            model=model,
            loss_fn=nn.CrossEntropyLoss(),
            batches=shuffled(*data.train, batch_size=64, seed=seed),
            eval_batches=chunks(*data.validation),
            test_batches=chunks(*data.test),
            metric=accuracy,
        )

    TASK = Task("mlp", make, optimizer="momentum", steps=1000, schedule="cosine", batch_size=64, normalizer="none")

Rules for a task:
- `make(seed)` seeds the weights and the order of the batches; the data are the same for every seed. It is
  deterministic and takes at most 2 seconds.
- A batch is a pair (x, y). `batches` is a loader of epochs: it is iterated again and again, without a short last batch.
- An entrant sees `eval_batches`, and never `test_batches`, from which regret is computed.
- A run of `steps` steps, 500 to 2,000, takes 2 to 6 seconds on one core, 12 at most.
- Only torch, numpy and scipy are imported.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
FOLDERS = {"development": "tasks", "held-out": "tasks_held_out"}
SCHEDULES = ("constant", "cosine")
Batch = tuple[Tensor, Tensor]

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
    "rmsprop": (torch.optim.RMSprop, {}),
}


@dataclass(frozen=True)
class Parts:
    """The parts of one training.

    model: in train mode. loss_fn: loss_fn(outputs, y) is the scalar loss; None if `forward` returns the loss.
    batches: a loader of training batches (x, y), one shuffled epoch for each `iter`.
    eval_batches: held-out batches that an entrant may look at. test_batches: held-out batches that only the judge sees.
    metric: metric(outputs, y) is a number in 0 to 1, larger is better; None if the loss itself is judged.
    forward: forward(model, batch) returns the outputs, or without loss_fn the loss; None to call model(x).
    """

    model: nn.Module
    loss_fn: Callable[[Any, Tensor], Tensor] | None
    batches: Iterable[Batch]
    eval_batches: list[Batch]
    test_batches: list[Batch]
    metric: Callable[[Any, Tensor], float] | None = None
    forward: Callable[[nn.Module, Batch], Any] | None = None

    def outputs(self, batch: Batch) -> Any:
        """The outputs of the model on a batch; without loss_fn the loss."""
        return self.model(batch[0]) if self.forward is None else self.forward(self.model, batch)

    def loss(self, batch: Batch) -> Tensor:
        """The scalar loss of a batch."""
        outputs = self.outputs(batch)
        loss: Tensor = outputs if self.loss_fn is None else self.loss_fn(outputs, batch[1])
        return loss


@dataclass(frozen=True)
class Task:
    """A training whose learning rate is to be found.

    family: kind of network, for tables. make: make(seed) returns the `Parts`. optimizer: a key of OPTIMIZERS.
    steps: number of optimizer steps, 500 to 2,000. schedule: "constant", or "cosine" to zero over all steps.
    batch_size and normalizer: for tables. settings: arguments of the optimizer beside its learning rate.
    name: set from the file's name by `load`.
    """

    family: str
    make: Callable[[int], Parts]
    optimizer: str
    steps: int
    schedule: str
    batch_size: int
    normalizer: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS or self.schedule not in SCHEDULES or not 500 <= self.steps <= 2000:
            raise ValueError(f"{self.family}: {self.optimizer}, {self.schedule}, {self.steps} steps is no task.")

    def optimizer_of(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """The optimizer of this task for `model`, with the learning rate `lr`."""
        kind, defaults = OPTIMIZERS[self.optimizer]
        return kind(model.parameters(), lr=lr, **(defaults | dict(self.settings)))  # type: ignore[call-arg]


def accuracy(outputs: Tensor, y: Tensor) -> float:
    """The share of rows of `outputs` (..., classes) whose largest entry is at `y`."""
    return float((outputs.argmax(-1) == y).float().mean())


def binary_accuracy(outputs: Tensor, y: Tensor) -> float:
    """The share of outputs whose sign agrees with y in {0, 1}."""
    return float(((outputs > 0) == (y > 0.5)).float().mean())


def names(folder: str) -> list[str]:
    """The names of the tasks in "development" or "held-out"."""
    return sorted(p.stem for p in (HERE / FOLDERS[folder]).glob("*.py") if not p.stem.startswith("_"))


def load(name: str) -> Task:
    """The task with this name, from either folder."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    found = [folder for folder in FOLDERS.values() if (HERE / folder / f"{name}.py").exists()]
    if len(found) != 1:
        raise ValueError(f"{name} must be the name of one task; it is in {len(found)} of the folders.")
    task: Task = importlib.import_module(f"{found[0]}.{name}").TASK
    object.__setattr__(task, "name", name)
    return task
