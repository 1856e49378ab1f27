"""Trains groups of a plan's cells on one device: stacked where that can be and pays, else one at a time."""

import os
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.environment import environment
from normscope.losses import LOSSES
from normscope.sweeping.ensemble import train_stacked
from normscope.sweeping.lowering import lower
from normscope.sweeping.networks import first_batch, prepare, saved_bytes, state_bytes
from normscope.sweeping.numerics import numerics
from normscope.sweeping.outcome import Outcome
from normscope.sweeping.plan import Cell, Plan
from normscope.sweeping.stackable import NotStackable, check_runs
from normscope.sweeping.stacked_step import Program, stack
from normscope.sweeping.unstacked import train_alone

_COMPILE_SECONDS = 60.0

Advance = Callable[[float], None]


def most_members(device: str) -> int:
    """More bring nothing: measured by benchmarks/sweep.py."""
    return 256 if device.startswith("cuda") else 64


def even_groups(cells: int, most: int) -> int:
    """The size of groups of at most `most` that differ little.

    Example:
        >>> even_groups(2100, 256)
        234
    """
    groups = -(-cells // most)
    return max(1, -(-cells // max(groups, 1)))


class Trainer:
    """A plan made ready on a device: data there, networks tried, the way of training chosen.

    The choice follows from the plan and the device alone, not from a clock, so that the same groups give the same bits
    on a CPU: on a CPU networks with convolutions train one at a time (measured: benchmarks/sweep.py), everything else
    as a stack, unless a module does not take part in one. `note` says why, where it is not the plain case.

    every_epoch: test after each; else after the last alone, and outcomes hold nan for the others.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        device: str = "cpu",
        root: str | os.PathLike[str] | None = None,
        every_epoch: bool = True,
    ) -> None:
        self.plan, self.device, self._every_epoch = plan, torch.device(device), every_epoch
        self.networks, self.data = prepare(plan, root, self.device)
        self.loss_fn = LOSSES[plan.loss]
        n = len(self.data.x_train)
        self.batch = min(plan.batch_size, n)
        self.steps = plan.epochs * (n // self.batch)
        model = deepcopy(self.networks.initial(plan.values[0], plan.seeds[0])).to(self.device)
        self.draws = _draws(model, self.data.x_train[: self.batch])
        self._model_bytes = self._member_bytes(model)
        self._parameters = sum(p.numel() for p in model.parameters())
        self.mode, self.note = "stacked", ""
        convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in model.modules())
        if plan.mode == "looped":
            self.mode = "looped"
        elif plan.mode == "auto" and self.device.type == "cpu" and convolves:
            self.mode, self.note = "looped", "on a CPU convolutional networks train faster one at a time"
        if self.mode == "stacked":
            self._try_stack(model)

    def group_size(self, cells: int) -> int:
        """Members of a group: as many as memory holds, at most `most_members`, in groups of nearly equal size."""
        room = max(1, int(0.7 * _free_bytes(self.device) / self._model_bytes))
        return even_groups(cells, min(room, most_members(self.device.type)))

    def train(
        self, cells: Sequence[Cell], *, size: int | None = None, advance: Advance | None = None
    ) -> Iterator[list[Outcome]]:
        """Outcomes of the cells, group after group as they are done; out of memory, a group is halved.

        Args:
            size: what a compiled group is filled up to, so that all have one shape.
            advance: told how many trainings have been done since it was last told.
        """
        size = len(cells) if size is None else size
        try:
            with numerics(self.plan, self.device):
                found = self._group(cells, max(size, len(cells)), advance or (lambda done: None))
        except (RuntimeError, MemoryError) as error:
            if not _out_of_memory(error) or len(cells) == 1:
                raise
            found = None
        if found is not None:
            yield found
            return
        # Out of the except block: the exception holds the frames, and with them the tensors.
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        half = -(-len(cells) // 2)
        yield from self.train(cells[:half], size=half, advance=advance)
        yield from self.train(cells[half:], size=half, advance=advance)

    def _group(self, cells: Sequence[Cell], size: int, advance: Advance) -> list[Outcome]:
        note = self.note
        if self.mode == "stacked":
            try:
                return train_stacked(self, cells, size, advance)
            except NotStackable as problem:
                note = f"not stacked: {problem}"
        return [train_alone(self, cell, note, advance) for cell in cells]

    def repays_compiling(self, model_steps: int) -> bool:
        """Whether so many steps take longer, by a rough count, than a compiler."""
        if self.device.type == "cuda":
            each = 2e-5 + 32 * self._parameters / 4e12
        else:
            each = 1e-4 + 6 * self._parameters * self.batch / 2e10
        return model_steps * each > _COMPILE_SECONDS

    def environment(self, **more: Any) -> dict[str, Any]:
        precise = self.device.type == "cpu" or self.plan.dtype != "float32" or not self.plan.tf32
        found: dict[str, Any] = {**environment(self.device), "precision": self.plan.dtype if precise else "tf32"}
        return found | more

    def tests_after(self, step: int) -> bool:
        """Whether the epoch that ends with this step is tested."""
        return self._every_epoch or step + 1 == self.steps

    def tested(self, evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Loss and accuracy on the whole test set, in parts of a batch's size."""
        x, y = self.data.x_test, self.data.y_test
        loss, right = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        summed = self.plan.loss == "half_sse"
        for part, targets in zip(x.split(self.batch), y.split(self.batch), strict=True):
            its_loss, its_right = evaluate(part, targets)
            loss = loss + its_loss * (1 if summed else len(part) / len(x))
            right = right + its_right
        return loss, right / len(x)

    def _program(self, model: nn.Module, lowered: bool) -> Program:
        total = len(self.plan.cells()) * self.steps
        wanted = self.plan.compile == "always" or (self.plan.compile == "auto" and self.repays_compiling(total))
        return Program(
            model,
            self.loss_fn,
            lowered=lowered,
            compiled=wanted,
            draws=self.draws,
            stream_seed=self.plan.stream_seed,
        )

    def _try_stack(self, model: nn.Module) -> None:
        """Two members make a step, eagerly, on a GPU with convolutions lowered, or else as they are.

        A model that cannot is looped, and the note says which module stands in the way and why.
        """
        x, y = first_batch(self.plan, self.data)
        for lowered in (True, False) if self.device.type == "cuda" else (False,):
            self.program = self._program(model, lowered)
            members = stack([model, model], [(0.0, 0.0, 0.0)] * 2, self.device)
            try:
                check_runs(self.program.training, partial(self.program.moved, members, x, y))
                return
            except NotStackable as problem:
                note = f"not stacked: {problem}"
        self.mode, self.note = "looped", note

    def _member_bytes(self, model: nn.Module) -> int:
        """Parameters and velocity before and after a step, the gradient, and thrice what the backward pass keeps."""
        trial = deepcopy(model)
        if self.device.type == "cuda":
            lower(trial)
        x, y = first_batch(self.plan, self.data)
        return 5 * state_bytes(model) + 3 * saved_bytes(lambda: self.loss_fn(trial(x), y))


def _draws(model: nn.Module, x: Tensor) -> bool:
    """Whether a forward pass moves torch's generators, as dropout does."""
    on_cuda = x.device.type == "cuda"
    state = (lambda: torch.cuda.get_rng_state(x.device)) if on_cuda else torch.get_rng_state
    with torch.random.fork_rng(devices=[x.device] if on_cuda else []), torch.no_grad():
        before = state()
        deepcopy(model)(x)
        return not torch.equal(before, state())


def _free_bytes(device: torch.device) -> int:
    """Of the GPU; of the machine what can be had without swapping, or half of all where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    told = Path("/proc/meminfo")
    if told.exists():
        available = [line.split()[1] for line in told.read_text().splitlines() if line.startswith("MemAvailable:")]
        if available:
            return int(available[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in text
