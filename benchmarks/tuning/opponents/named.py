"""The answer of an entrant: a learning rate and the steps that its search cost."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from task import Batch, Parts, Task
from torch import Tensor, nn


@dataclass(frozen=True)
class Named:
    """The answer of an entrant.

    lr: the learning rate; None if it names none. steps: steps that the search cost. note: its own words.
    range: rates that the entrant cannot tell apart.
    """

    lr: float | None
    steps: float
    note: str = ""
    range: tuple[float, float] | None = None

    def plain(self) -> dict[str, Any]:
        """The answer as JSON, for the store."""
        usable = self.lr is not None and math.isfinite(self.lr) and self.lr > 0
        return {"lr": self.lr if usable else None, "search_steps": self.steps, "note": self.note, "range": self.range}


# entrant(task, parts, seed): the parts are freshly made and the entrant's own.
Entrant = Callable[[Task, Parts, int], Named]


class Whole(nn.Module):
    """A task's network as a module of one batch, for packages that call model(x) and criterion(outputs, y)."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.model = parts.model
        self.parts = [parts]

    def forward(self, batch: Batch) -> Any:
        return self.parts[0].outputs(batch)

    def criterion(self, outputs: Any, y: Tensor) -> Tensor:
        """The loss of the outputs."""
        loss_fn = self.parts[0].loss_fn
        loss: Tensor = outputs if loss_fn is None else loss_fn(outputs, y)
        return loss


def budget(task: Task) -> float:
    """The steps that a search may cost: 5 % of the training, 10 % below 1,000 steps."""
    return task.steps * (0.05 if task.steps >= 1000 else 0.1)
