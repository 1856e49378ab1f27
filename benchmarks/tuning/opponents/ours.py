"""The entrant: `normscope.tune`."""

from typing import Any

from opponents.named import Named
from task import Parts, Task


def tune(task: Task, parts: Parts, seed: int) -> Named:
    """`ns.tune` with the task's own steps and schedule; it may look at the evaluation batches."""
    import normscope as ns

    optimizer = task.optimizer_of(parts.model, 1e-3)
    result = ns.tune(
        parts.model,
        parts.loss_fn,
        parts.batches,
        optimizer,
        steps=task.steps,
        schedule=task.schedule,
        eval_batches=parts.eval_batches,
        forward=parts.forward,
        budget=0.05 if task.steps >= 1000 else 0.1,
    )
    return Named(result.lr, result.cost * task.steps, str(getattr(result, "reason", "")), tuple(result.lr_range))


ENTRANTS: dict[str, Any] = {"tune": tune}
