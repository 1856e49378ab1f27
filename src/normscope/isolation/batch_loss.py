"""The training loss of one batch as a function of the parameters, evaluated without a trace."""

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
    """What is trained: `loss(model, batch)` is the scalar loss of a batch.

    autocast: the dtype that training runs in; None takes the one in force where the measurement is called.
    processes: those over which losses and gradients are averaged, as DDP averages them.
    objective: the same loss by its parts, for what needs the outputs.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Any], Tensor]
    autocast: torch.dtype | None = None
    processes: Processes = field(default_factory=Processes)
    objective: Objective = field(default_factory=Objective)


class BatchLoss:
    """L(theta) of one batch at the leaves that `untouched` lent: same modes, buffers and random draws at every call."""

    def __init__(self, task: Task, lent: Lent, batch: Any) -> None:
        self.task, self.lent = task, lent
        self._copies = Copies(batch)
        self.device = next((leaf.device for leaf in lent.leaves), torch.device("cpu"))
        self._autocast = task.autocast
        if self._autocast is None and torch.is_autocast_enabled(self.device.type):
            self._autocast = torch.get_autocast_dtype(self.device.type)

    def move_to(self, values: list[Tensor], direction: list[Tensor] | None = None, length: float = 0.0) -> None:
        """Puts the leaves at values + length * direction."""
        with torch.no_grad():
            if direction is not None and self.device.type == "cpu":
                # Once through memory, and as fast for small networks: on a CPU `_foreach` is a loop as well.
                for leaf, value, way in zip(self.lent.leaves, values, direction, strict=True):
                    torch.add(value, way, alpha=length, out=leaf)
                return
            torch._foreach_copy_(tuple(self.lent.leaves), values)
            if direction is not None:
                torch._foreach_add_(tuple(self.lent.leaves), direction, alpha=length)

    def place(self, values: dict[int, Tensor]) -> None:
        """Puts these values into the leaves of these numbers; the others stay."""
        with torch.no_grad():
            for number, value in values.items():
                self.lent.leaves[number].copy_(value)

    def value(self, inside: Inside = None) -> Tensor:
        def local() -> list[Tensor]:
            with torch.no_grad(), self._pass(inside) as loss:
                return [loss]

        return self.task.processes.mean(local)[0]

    def gradient(self, wrt: list[int] | None = None, inside: Inside = None) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient by the leaves number `wrt` (all of them); zeros where one has no part in it."""
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
        """A forward; the backward is made inside, since activation checkpointing calls the layers again there."""
        self.lent.reset()
        # The cache of casts would keep this probe's weights for the user's next forward.
        dtype = self._autocast
        cast = torch.autocast(self.device.type, dtype=dtype, cache_enabled=False) if dtype else nullcontext()
        with inside or nullcontext() as forward_ends:
            with cast:
                # In containers of its own: a forward may take the labels out of its batch.
                loss = self.task.loss(self.task.model, self.batch)
            if forward_ends is not None:
                forward_ends()
            if self._copies.changed():
                raise ValueError(
                    "The forward changes the batch in place, so no two passes see the same data. Change a clone of it."
                )
            if not isinstance(loss, Tensor) or loss.ndim or not loss.is_floating_point():
                got = f"shape {tuple(loss.shape)}, {loss.dtype}" if isinstance(loss, Tensor) else type(loss).__name__
                raise ValueError(f"The loss must be a scalar tensor; got {got}. Take its mean or its sum.")
            yield loss

    @property
    def batch(self) -> Any:
        """The copies, in containers and objects that are new each time."""
        return self._copies.take()

    def _backward(self, loss: Tensor, leaves: list[nn.Parameter]) -> list[Tensor]:
        if not loss.requires_grad:
            raise ValueError(
                "The loss does not depend on any trainable parameter, so it has no gradient to look along."
            )
        half = torch.float16 in (self._autocast, *(leaf.dtype for leaf in leaves))
        for scale in _HALF_SCALES if half else (1.0,):
            last = scale == 1.0
            found = torch.autograd.grad(
                loss * scale if half else loss, leaves, retain_graph=not last, allow_unused=True
            )
            dense = [g.to_dense() if g is not None and g.is_sparse else g for g in found]
            grads = [torch.zeros_like(p) if g is None else g for g, p in zip(dense, leaves, strict=True)]
            # Small gradients vanish in float16 unless the loss is scaled up, large ones overflow if it is.
            if last or all(bool(g.isfinite().all()) for g in grads):
                return grads if not half else list(torch._foreach_div(grads, scale))
        raise AssertionError("unreachable")

    def mean_over_processes(self, tensor: Tensor) -> Tensor:
        return self.task.processes.mean(lambda: [tensor])[0]


def check_devices(batch: Any, device: torch.device) -> None:
    """One message where data and model are on different devices."""
    for tensor in tree_leaves(batch):
        if isinstance(tensor, Tensor) and tensor.ndim and tensor.device.type != device.type:
            raise ValueError(f"The batch is on {tensor.device} and the model on {device}. Hand in batch.to({device}).")
