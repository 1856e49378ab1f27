"""The training loss of one batch as a function of the parameters; evaluating it leaves the model unchanged."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normscope.isolation.batch_copies import Copies
from normscope.isolation.lending import Lent
from normscope.isolation.processes import Processes
from normscope.objective import Objective

Inside = AbstractContextManager[Callable[[], None] | None] | None
_HALF_SCALES = (2.0**16, 2.0**8, 1.0)


@dataclass(frozen=True)
class Task:
    """A model and its training loss.

    loss: loss(model, batch) returns the scalar loss of a batch. autocast: the dtype of mixed precision; None takes the
    autocast state at the moment of the measurement. processes: the group over which losses and gradients are averaged,
    as DDP averages them. objective: the same loss in two parts, outputs and loss of the outputs. max_memory: bytes that
    copies of parameters, buffers and the batch may take; None for no limit.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Any], Tensor]
    autocast: torch.dtype | None = None
    processes: Processes = field(default_factory=Processes)
    objective: Objective = field(default_factory=Objective)
    max_memory: float | None = None


class BatchLoss:
    """L(theta) of one batch at the leaves that `untouched` lent.

    Every call has the same modes, buffers and random draws, so the loss is a function of the leaves alone.
    """

    def __init__(self, task: Task, lent: Lent, batch: Any) -> None:
        self.task, self.lent = task, lent
        self._copies = Copies(batch)
        self.device = next((leaf.device for leaf in lent.leaves), torch.device("cpu"))
        self._autocast = task.autocast
        if self._autocast is None and torch.is_autocast_enabled(self.device.type):
            self._autocast = torch.get_autocast_dtype(self.device.type)

    def move_to(self, values: list[Tensor], direction: list[Tensor] | None = None, length: float = 0.0) -> None:
        """Set the leaves to values + length * direction."""
        with torch.no_grad():
            if direction is not None and self.device.type == "cpu":
                # One pass through memory, and as fast for small networks: on a CPU `_foreach` is a loop, too.
                for leaf, value, part in zip(self.lent.leaves, values, direction, strict=True):
                    torch.add(value, part, alpha=length, out=leaf)
                return
            torch._foreach_copy_(tuple(self.lent.leaves), values)
            if direction is not None:
                torch._foreach_add_(tuple(self.lent.leaves), direction, alpha=length)

    def place(self, values: dict[int, Tensor]) -> None:
        """Set some leaves, given by their numbers; the others stay."""
        with torch.no_grad():
            for number, value in values.items():
                self.lent.leaves[number].copy_(value)

    def value(self, inside: Inside = None) -> Tensor:
        """The loss at the leaves, by a forward pass inside the context `inside`."""

        def local() -> list[Tensor]:
            with torch.no_grad(), self._pass(inside) as loss:
                return [loss]

        return self.task.processes.mean(local)[0]

    def gradient(self, wrt: list[int] | None = None, inside: Inside = None) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient with respect to the leaves number `wrt` (by default all leaves).

        The gradient is zero for a leaf that the loss does not depend on.

        Raises:
            ValueError: the loss is not a scalar tensor, depends on no parameter, or the forward changes the batch.
        """
        chosen = set(range(len(self.lent.leaves)) if wrt is None else wrt)

        def local() -> list[Tensor]:
            for i, leaf in enumerate(self.lent.leaves):
                if leaf.requires_grad != (i in chosen):
                    leaf.requires_grad_(i in chosen)
            leaves = [self.lent.leaves[i] for i in sorted(chosen)]
            with self._pass(inside) as loss:
                if wrt is not None and not loss.requires_grad:
                    return [loss, *map(torch.zeros_like, leaves)]
                return [loss.detach(), *self._backward(loss, leaves)]

        loss, *grads = self.task.processes.mean(local)
        return loss, grads

    @contextmanager
    def _pass(self, inside: Inside) -> Iterator[Tensor]:
        """A forward pass; the backward runs inside this context, where activation checkpointing calls layers again."""
        self.lent.reset()
        self.lent.forwards += 1
        # No cache: it would keep casts of the lent weights for the user's next forward.
        dtype = self._autocast
        cast = torch.autocast(self.device.type, dtype=dtype, cache_enabled=False) if dtype else nullcontext()
        with self.lent.guard.first_pass(), inside or nullcontext() as forward_ends:
            with cast:
                # `self.batch` makes new containers: a forward may pop the labels from its batch.
                loss = self.task.loss(self.task.model, self.batch)
            if forward_ends is not None:
                forward_ends()
            if self._copies.changed():
                raise ValueError(
                    "The forward changes the batch in place, so no two passes would get the same data. Clone the batch "
                    "in the forward, and change the clone."
                )
            if not isinstance(loss, Tensor) or loss.ndim or not loss.is_floating_point():
                got = f"shape {tuple(loss.shape)}, {loss.dtype}" if isinstance(loss, Tensor) else type(loss).__name__
                raise ValueError(f"The loss must be a scalar tensor; got {got}. Take its mean or its sum.")
            yield loss

    @property
    def batch(self) -> Any:
        """A copy of the batch, with new containers and objects at each access."""
        return self._copies.take()

    def _backward(self, loss: Tensor, leaves: list[nn.Parameter]) -> list[Tensor]:
        if not loss.requires_grad:
            raise ValueError("The loss does not depend on any trainable parameter, so it has no gradient.")
        self.lent.outside.look(loss, self._copies.tensors, self.task.objective.loss_fn)
        half = torch.float16 in (self._autocast, *(leaf.dtype for leaf in leaves))
        for scale in _HALF_SCALES if half else (1.0,):
            last = scale == 1.0
            self.lent.backwards += 1
            scaled = torch.autograd.grad(
                loss * scale if half else loss, leaves, retain_graph=not last, allow_unused=True
            )
            dense = [g.to_dense() if g is not None and g.is_sparse else g for g in scaled]
            grads = [torch.zeros_like(p) if g is None else g for g, p in zip(dense, leaves, strict=True)]
            # In float16, small gradients vanish if the loss is not scaled up, and large ones overflow if it is.
            if last or all(bool(g.isfinite().all()) for g in grads):
                return grads if not half else list(torch._foreach_div(grads, scale))
        raise AssertionError("unreachable")

    def mean_over_processes(self, tensor: Tensor) -> Tensor:
        """The mean of `tensor` over the processes."""
        return self.task.processes.mean(lambda: [tensor])[0]


def check_devices(batch: Any, device: torch.device) -> None:
    """Raise if the batch is on another device than the model."""
    for tensor in tree_leaves(batch):
        if isinstance(tensor, Tensor) and tensor.ndim and tensor.device.type != device.type:
            raise ValueError(f"The batch is on {tensor.device} and the model on {device}. Hand in batch.to({device}).")
