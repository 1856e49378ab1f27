"""A snapshot of one batch: the loss, the gradient and the coming update, computed once for all probes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from normscope.isolation.batch_loss import BatchLoss, Task
from normscope.isolation.coming_update import (
    check_optimizer,
    learning_rates,
    note_on_others,
    rates_by_id,
    updated,
)
from normscope.isolation.lending import untouched
from normscope.isolation.memory_bound import bytes_of
from normscope.isolation.module_calls import CallTrace, Replay, Watcher

UPDATES = ("optimizer", "gradient")


class NoStep(ValueError):
    """The learning rate is 0 at this training step, as at the first step of a warm-up: no step to measure along."""


class Snapshot:
    """The loss L around the present parameters theta, evaluated on copies of them.

    at: the loss of the batch, at parameters that a probe may move (`at.move_to`, `at.value`, `at.gradient`).
    theta: the present parameters that training moves: the optimizer's, or all trainable ones without an optimizer.
    loss, gradient: L(theta) and its gradient, from one pass. The pass is traced if `traced` is true; the `watchers`
        then see the inputs and the output of every module call.
    trace: the order of the module calls in that pass.
    """

    def __init__(
        self,
        loss: BatchLoss,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        lr: float | None = None,
        step: int = 0,
        scale: float = 1.0,
        watchers: Sequence[Watcher] = (),
        forward_only: bool = False,
        traced: bool = True,
    ) -> None:
        self.at = loss
        self.optimizer, self.step, self.scale = optimizer, step, scale
        self.theta = [p.detach() for p in loss.lent.originals]
        self.trace = CallTrace(tuple(watchers))
        self._lr = lr
        self._forward_only = forward_only
        self._traced = traced

    @cached_property
    def rates(self) -> list[float]:
        """The learning rate of each parameter."""
        if self._lr is not None:
            return [self._lr] * len(self.theta)
        if self.optimizer is None:
            raise ValueError("A step needs a learning rate: hand in the optimizer, or lr=.")
        rates = learning_rates(self.optimizer, self.at.lent.originals)
        if not any(rates):
            raise NoStep("The learning rate is 0 at this step, so there is no step to measure along.")
        return rates

    @cached_property
    def _base(self) -> tuple[Tensor, list[Tensor]]:
        self.at.move_to(self.theta)
        inside = self.trace.following(self.at.task.model) if self._traced else None
        base = (self.at.value(inside), []) if self._forward_only else self.at.gradient(inside=inside)
        self.at.lent.restores_generators = self.at.lent.generators.moved()
        return base

    @property
    def loss(self) -> float:
        """L(theta)."""
        return float(self._base[0])

    @property
    def gradient(self) -> list[Tensor]:
        """The gradient at theta, one tensor a parameter; empty if all probes need forward passes only."""
        return self._base[1]

    @property
    def drew(self) -> bool:
        """Whether the forward pass drew random numbers; all passes of this snapshot draw the same."""
        self._base  # noqa: B018
        return self.at.lent.restores_generators

    @cached_property
    def descent(self) -> list[Tensor]:
        """- lr g, with each parameter's own learning rate."""
        return list(torch._foreach_mul(self.gradient, [-rate for rate in self.rates]))

    @cached_property
    def _after_optimizer_step(self) -> list[Tensor]:
        if self.optimizer is None:
            raise ValueError(
                "The optimizer's update was asked for, and no optimizer was handed in. Hand in the optimizer, or ask "
                "for update='gradient'."
            )
        # The user's step comes right after this snapshot: an optimizer that draws noise draws it from the state in
        # which the generators were when the snapshot began.
        self.at.lent.generators.restore()
        return updated(self.optimizer, self.at.lent.originals, scale=self.scale)

    def after(self, update: str) -> list[Tensor]:
        """The parameters after the optimizer's coming step ("optimizer") or a plain gradient step ("gradient")."""
        if update == "gradient":
            return list(torch._foreach_add(self.theta, self.descent))
        return self._after_optimizer_step

    @property
    def notes(self) -> list[str]:
        """Notes on what trains and is held constant here."""
        others = [] if self.optimizer is None else note_on_others(self.optimizer, self.at.lent)
        return others + self.at.lent.outside.note()

    def replay(self) -> Replay:
        """A `Replay` of the traced pass, which answers the first module calls from memory."""
        return Replay(self.at.task.model, self.trace, self.at.lent.generators, draws=self.drew)


@contextmanager
def snapshot_of(
    task: Task, batch: Any, *, optimizer: torch.optim.Optimizer | None = None, **options: Any
) -> Iterator[Snapshot]:
    """A `Snapshot` of `task` on `batch`; the model is put back at the end."""
    rates = None if optimizer is None else rates_by_id(optimizer)
    with untouched(task.model, only=rates, max_memory=task.max_memory, beside=bytes_of(batch)) as lent:
        if not lent.leaves:
            check_optimizer(rates, (parameter for _, parameter, _ in lent.contents.parameters))
            raise ValueError("No trainable parameter of the model moves, so there is no step to measure along.")
        yield Snapshot(BatchLoss(task, lent, batch), optimizer=optimizer, **options)


def as_vector(tensors: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
    """All entries as one vector, half precision as float32, complex numbers as pairs; written to `out` if given."""
    device = tensors[0].device
    # A snapshot of a small network is short: `reshape` and a `to` without effect would take a tenth of it.
    parts = [real(tensor).flatten() for tensor in tensors]
    parts = [part if part.device == device else part.to(device) for part in parts]
    if out is not None:
        torch.cat(parts, out=out)
        return out
    vector = torch.cat(parts)
    return vector.float() if vector.dtype.itemsize < 4 else vector


def real(tensor: Tensor) -> Tensor:
    """The tensor itself, or a complex one as pairs of real and imaginary part."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def norm(tensor: Tensor) -> Tensor:
    """The l2 norm, summed in float64."""
    length: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return length


# Inner products of float32 vectors are summed in float32 inside parts of this many entries, and in float64 over the
# parts: relative error 1e-6, at ten times the speed of float64 throughout.
_PART = 2**20


def inner(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of two vectors."""
    if a.numel() <= _PART:
        return torch.dot(a, b)
    parts = [torch.dot(x, y) for x, y in zip(a.split(_PART), b.split(_PART), strict=True)]
    return torch.stack(parts).double().sum()


def length(v: Tensor) -> Tensor:
    """The l2 length of a vector."""
    return inner(v, v).sqrt()
