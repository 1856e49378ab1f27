"""Train groups of a plan's cells on one device: as a stack if that works and is faster, else one at a time."""

import os
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.losses import LOSSES
from normscope.messages.out_of_memory import out_of_memory
from normscope.results.environment import environment
from normscope.stackable import NotStackable, check_runs
from normscope.sweeping.ensemble import train_stacked
from normscope.sweeping.lowering import lower
from normscope.sweeping.networks import first_batch, prepare, saved_bytes, state_bytes
from normscope.sweeping.numerics import numerics
from normscope.sweeping.outcome import Outcome
from normscope.sweeping.plan import Cell, Plan
from normscope.sweeping.stacked_step import Program, stack
from normscope.sweeping.unstacked import train_alone

_COMPILE_SECONDS = 60.0

Advance = Callable[[float], None]


def most_members(device: str) -> int:
    """The largest useful group: more members bring no more speed (measured by benchmarks/sweep.py)."""
    return 256 if device.startswith("cuda") else 64


def even_groups(cells: int, most: int) -> int:
    """The size of nearly equal groups of at most `most` cells.

    Example:
        >>> even_groups(2100, 256)
        234
    """
    groups = -(-cells // most)
    return max(1, -(-cells // max(groups, 1)))


class Trainer:
    """A plan ready to train on a device: data moved there, networks tried, and `mode` chosen ("stacked" or "looped").

    The choice depends on the plan and the device only, not on a clock, so the same groups give the same bits on a CPU.
    On a CPU, networks with convolutions train one at a time, which is faster there (benchmarks/sweep.py). All others
    train as a stack, unless a module cannot be stacked. `note` gives the reason for training one at a time.

    Args:
        plan: the plan to train.
        device: "cpu" or "cuda".
        root: the data folder, for data sets with files.
        every_epoch: test after every epoch; otherwise after the last one only, and outcomes hold nan for the others.
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
        """The size of nearly equal groups: as many members as fit in memory, at most `most_members`."""
        room = max(1, int(0.7 * _free_bytes(self.device) / self._model_bytes))
        return even_groups(cells, min(room, most_members(self.device.type)))

    def train(
        self, cells: Sequence[Cell], *, size: int | None = None, advance: Advance | None = None
    ) -> Iterator[list[Outcome]]:
        """Train the cells; yields the outcomes of each group. If memory runs out, the group is halved.

        Args:
            cells: the cells to train.
            size: number of members up to which a compiled group is filled, so that all groups have one shape.
            advance: called with the number of trainings done since its last call.
        """
        size = len(cells) if size is None else size
        try:
            with numerics(self.plan, self.device):
                outcomes = self._group(cells, max(size, len(cells)), advance or (lambda done: None))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or len(cells) == 1:
                raise
            outcomes = None
        if outcomes is not None:
            yield outcomes
            return
        # Outside the except block: the exception holds the frames, and so the tensors, in memory.
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
        """Whether so many steps of one member take longer, by a rough estimate, than compiling."""
        if self.device.type == "cuda":
            each = 2e-5 + 32 * self._parameters / 4e12
        else:
            each = 1e-4 + 6 * self._parameters * self.batch / 2e10
        return model_steps * each > _COMPILE_SECONDS

    def environment(self, **more: Any) -> dict[str, Any]:
        """Versions, device and precision, stored with every outcome."""
        precise = self.device.type == "cpu" or self.plan.dtype != "float32" or not self.plan.tf32
        return {**environment(self.device), "precision": self.plan.dtype if precise else "tf32"} | more

    def tests_after(self, step: int) -> bool:
        """Whether the epoch that ends with this step is tested."""
        return self._every_epoch or step + 1 == self.steps

    def tested(self, evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """The loss and accuracy on the whole test set, evaluated in batches."""
        x, y = self.data.x_test, self.data.y_test
        loss, right = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        summed = self.plan.loss == "half_sse"
        for part, targets in zip(x.split(self.batch), y.split(self.batch), strict=True):
            part_loss, part_right = evaluate(part, targets)
            loss = loss + part_loss * (1 if summed else len(part) / len(x))
            right = right + part_right
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
        """Try one eager step of two members; on a GPU first with lowered convolutions, then without.

        If no step works, the mode becomes "looped", and the note names the module that failed.
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
        """The memory of one member, estimated as five states and three times the tensors saved for the backward pass.

        The five states are parameters and velocity, each before and after a step, and the gradient.
        """
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
    """The free memory of the GPU, or of the machine without swapping; half of all memory if the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        available = [line.split()[1] for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:")]
        if available:
            return int(available[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
