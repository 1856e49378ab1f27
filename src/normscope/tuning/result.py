"""The result of `tune`: a learning rate, a range, the cost, the reason, and every rehearsal."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from normscope.messages import duration
from normscope.results import plain, write_json
from normscope.results.reporting import Reportable
from normscope.tuning.evidence import last_loss
from normscope.tuning.learning_rates import set_rate
from normscope.tuning.rehearsal import Rehearsal

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1


@dataclass(frozen=True)
class Cost:
    """The cost of a search, as predicted before it and as it was.

    A gradient pass is one forward and one backward of a whole training step; a forward counts as a third.

    Attributes:
        passes_predicted: gradient passes of the first wave of rehearsals, and at most.
        passes_used: gradient passes that were made.
        share: passes_used over the planned steps of the training, from 0 to 1.
        seconds_predicted: passes_predicted in seconds, by the pace of the first rehearsal's steps.
        seconds_used: seconds of the search, with reading batches, copying and judging.
        stored: number of rehearsals that were read from the store.
    """

    passes_predicted: tuple[float, float]
    passes_used: float
    share: float
    seconds_predicted: tuple[float, float]
    seconds_used: float
    stored: int = 0


@dataclass(frozen=True)
class Tuning(Reportable):
    """The learning rate to train with, the reason for it, and every rehearsal.

    Attributes:
        lr: the learning rate, which the schedule multiplies; of several parameter groups, the largest group's.
        lr_range: an interval around lr, at least a factor of 2 each way unless a rate diverged or warm-up sets a limit.
        reason: why this rate, in a sentence.
        cost: the cost of the search, as predicted and as it was.
        rehearsals: all rehearsals, by rising rate.
        notes: what the rate does not cover, and what was unusual.
        steps: the planned number of optimizer steps.
        optimizer: the class of the optimizer.
        schedule: the name of the schedule.
        settings: arguments that the rate depends on.
        environment: versions and device.
    """

    lr: float
    lr_range: tuple[float, float]
    reason: str
    cost: Cost
    rehearsals: tuple[Rehearsal, ...]
    notes: tuple[str, ...]
    steps: int
    optimizer: str
    schedule: str
    settings: dict[str, Any]
    environment: dict[str, str | int]

    def apply(self, optimizer: torch.optim.Optimizer, scheduler: Any = None) -> None:
        """Set the learning rate in an optimizer; parameter groups keep their ratios.

        Args:
            optimizer: the optimizer that trains the model.
            scheduler: the scheduler built on this optimizer, if there is one: it keeps rates of its own.

        Raises:
            ValueError: a scheduler was built on the optimizer and is not handed in.

        Example:
            >>> import torch
            >>> from normscope.tuning.learning_rates import set_rate
            >>> sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
            >>> set_rate(sgd, 0.5); sgd.param_groups[0]["lr"]
            0.5
        """
        if scheduler is None and any("initial_lr" in group for group in optimizer.param_groups):
            raise ValueError(
                "A scheduler was built on this optimizer, and it would set the old rate again. Hand it in, "
                "apply(optimizer, scheduler), or apply before you build it."
            )
        set_rate(optimizer, self.lr, scheduler)

    def frame(self) -> "pd.DataFrame":
        """A table with one row for each rehearsal, by rate; its columns are those of `COLUMNS`.

        last_loss is the mean over the last third of the steps, by which rates are compared; nan after a divergence.
        """
        import pandas as pd

        return pd.DataFrame([row_of(asdict(each)) for each in self.rehearsals], columns=COLUMNS)

    def plain(self) -> dict[str, Any]:
        """The result as plain JSON."""
        return {"kind": "tuning", "schema": SCHEMA} | plain(asdict(self))

    def save(self, path: str | Path) -> None:
        """Write the result as plain JSON, with inf and nan as strings."""
        write_json(path, self.plain())

    def _sections(self) -> Sequence[Any]:
        from normscope.report.sections.tuning import tuning_section

        return [tuning_section("Tuning", self.plain())]

    def __str__(self) -> str:
        low, high = self.lr_range
        cost = self.cost
        passes, seconds = cost.passes_predicted, cost.seconds_predicted
        lines = [
            f"lr = {self.lr:.2g} ({low:.2g} to {high:.2g}) for {self.optimizer}, {self.steps} steps, {self.schedule}",
            self.reason,
            f"Cost: {cost.passes_used:.0f} gradient passes, {cost.share:.1%} of the training, "
            f"{duration(cost.seconds_used)} (predicted: {passes[0]:.0f} to {passes[1]:.0f} passes, "
            f"{duration(seconds[0])} to {duration(seconds[1])}).",
        ]
        return "\n".join(lines + [f"- {note}" for note in self.notes])


COLUMNS = ["lr", "steps", "first_loss", "last_loss", "diverged_at", "held_out_loss", "held_out_stderr", "metric",
           "passes", "seconds"]  # fmt: skip


def row_of(rehearsal: dict[str, Any]) -> dict[str, Any]:
    """One row of the table of rehearsals."""
    losses, held_out = rehearsal["losses"], rehearsal["held_out"]
    count = len(held_out)
    mean = sum(held_out) / count if count else float("nan")
    spread = sum((each - mean) ** 2 for each in held_out) / (count - 1) / count if count > 1 else float("nan")
    return {
        "lr": rehearsal["lr"],
        "steps": rehearsal["steps"],
        "first_loss": losses[0] if losses else float("nan"),
        "last_loss": last_loss(losses) if losses and rehearsal["diverged_at"] is None else float("nan"),
        "diverged_at": rehearsal["diverged_at"],
        "held_out_loss": mean,
        "held_out_stderr": spread**0.5,
        "metric": rehearsal["metric"],
        "passes": rehearsal["passes"],
        "seconds": rehearsal["seconds"],
    }
