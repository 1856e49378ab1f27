"""The entrant: `normscope.tune`."""

from typing import Any

from opponents.named import Named
from task import Parts, Task


def tune(task: Task, parts: Parts, seed: int) -> Named:
    """`ns.tune` with the task's own steps and schedule; it ranks by training losses, without evaluation batches."""
    import normscope as ns

    optimizer = task.optimizer_of(parts.model, 1e-3)
    result = ns.tune(
        parts.model,
        parts.loss_fn,
        parts.batches,
        optimizer,
        steps=task.steps,
        schedule=task.schedule,
        forward=parts.forward,
    )
    return Named(result.lr, result.cost.share * task.steps, result.reason, result.lr_range)


ENTRANTS: dict[str, Any] = {"tune": tune}
