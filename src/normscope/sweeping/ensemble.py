"""Train a group of cells as one stack of networks.

All members see one stream of batches. The losses are checked for divergence every few steps; the recorded step of
divergence is exact. Diverged members are removed from an eager stack once they are a quarter of it. A compiled stack is
halved, and only if the remaining work repays compiling again. A stack without survivors ends.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normscope.data import batches
from normscope.stackable import check_alike
from normscope.sweeping.outcome import CHECK_EVERY, Outcome, outcome
from normscope.sweeping.plan import Cell
from normscope.sweeping.stacked_step import Members, stack

if TYPE_CHECKING:
    from normscope.sweeping.trainer import Trainer


def train_stacked(
    trainer: "Trainer", cells: Sequence[Cell], size: int, advance: Callable[[float], None]
) -> list[Outcome]:
    """The outcomes of the cells; a compiled stack is filled up to `size` with copies that count as diverged."""
    plan, program, device = trainer.plan, trainer.program, trainer.device
    rows = [*cells, *[cells[-1]] * (size - len(cells))] if program.compiled else list(cells)
    models = [trainer.networks.initial(cell.value, cell.seed) for cell in rows]
    check_alike(models)
    members = stack(models, [plan.optimizer(cell) for cell in rows], device)
    del models
    record = _Record(trainer.steps, len(rows), len(cells), plan.explode, members)
    per_epoch, told = trainer.steps // plan.epochs, 0.0
    tests: list[tuple[Tensor, Tensor]] = []
    data = trainer.data
    stream = batches(data.x_train, data.y_train, batch_size=plan.batch_size, seed=plan.stream_seed, epochs=plan.epochs)
    for step, (x, y) in enumerate(stream):
        record.add(step, *program.step(members, x, y, step))
        ends = (step + 1) % per_epoch == 0
        if ends or (step + 1) % CHECK_EVERY == 0:
            alive = record.survivors(step)
            if not len(alive):
                break
            smaller = _smaller(trainer, len(members), len(alive), trainer.steps - step - 1)
            if smaller < len(members):
                members = record.keep(members, alive, smaller)
        if ends:
            loss = accuracy = torch.full_like(members.lr, torch.nan)
            if trainer.tests_after(step):
                loss, accuracy = trainer.tested(lambda x, y: program.evaluate(members, x, y))  # noqa: B023
            tests.append((record.spread(loss), record.spread(accuracy)))
            advance(len(cells) / plan.epochs)
            told += len(cells) / plan.epochs
    advance(len(cells) - told)
    where = trainer.environment(group=len(rows), compiled=program.compiled)
    losses, right = record.losses.double().cpu().numpy(), record.right.double().cpu().numpy()
    tested = [(loss.tolist(), accuracy.tolist()) for loss, accuracy in tests]
    return [
        outcome(
            plan,
            cell,
            losses[:, row],
            right[:, row],
            [(loss[row], accuracy[row]) for loss, accuracy in tested],
            batch=trainer.batch,
            mode="stacked",
            note=trainer.note,
            environment=where,
        )
        for row, cell in enumerate(cells)
    ]


class _Record:
    """Losses and right answers of every step, on the device, and which members have not diverged."""

    def __init__(self, steps: int, rows: int, cells: int, explode: float, members: Members) -> None:
        like = members.lr
        self.losses = torch.full((steps, rows), torch.nan, device=like.device, dtype=like.dtype)
        self.right = torch.full((steps, rows), torch.nan, device=like.device)
        self.row_of = torch.arange(rows, device=like.device)
        self._dead = self.row_of >= cells
        self._explode, self._checked = explode, 0

    def add(self, step: int, losses: Tensor, right: Tensor) -> None:
        self.losses[step, self.row_of] = losses.to(self.losses.dtype)
        self.right[step, self.row_of] = right

    def survivors(self, step: int) -> Tensor:
        """Positions, in the present stack, of the members that have not diverged up to `step`."""
        limit = self._explode * self.losses[0]
        new = self.losses[self._checked : step + 1]
        bad = ~new.isfinite() | ((new > limit) & (limit > 0))
        self._dead |= bad.any(0)
        self._checked = step + 1
        return (~self._dead[self.row_of]).nonzero().flatten()

    def keep(self, members: Members, alive: Tensor, size: int) -> Members:
        """A stack of `size` members: all survivors, filled up with diverged ones."""
        diverged = self._dead[self.row_of].nonzero().flatten()
        positions = torch.cat([alive, diverged])[:size].sort().values
        self.row_of = self.row_of[positions]
        return members.at(positions)

    def spread(self, values: Tensor) -> Tensor:
        """Values of the present stack as one value for each original row; nan for removed members."""
        whole = torch.full((self.losses.shape[1],), torch.nan, device=values.device, dtype=values.dtype)
        whole[self.row_of] = values
        return whole


def _smaller(trainer: "Trainer", size: int, alive: int, steps_left: int) -> int:
    """The size of the stack for the next steps."""
    if not trainer.program.compiled:
        return alive if alive <= 0.75 * size else size
    smaller = size
    while smaller // 2 >= alive:
        smaller //= 2
    return smaller if trainer.repays_compiling((size - smaller) * steps_left) else size
