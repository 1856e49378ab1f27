"""Several processes that measure one run: they average their results, and if one fails, all raise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from normscope.isolation.signals import steady

T = TypeVar("T")
_EXCHANGES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "_all_gather_base", "all_gather_object", "all_to_all",
    "all_to_all_single", "broadcast", "broadcast_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "_reduce_scatter_base", "gather", "scatter", "barrier",
)  # fmt: skip
# Bytes of an error's text that are sent to the other processes.
_TEXT = 512


def several_processes() -> bool:
    """Whether a default process group of more than one process is up."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class FailedElsewhere(Exception):
    """Another process could not measure; the message gives its number and its error."""


class FailedElsewhereAtRuntime(FailedElsewhere, RuntimeError):
    """Another process raised a RuntimeError; code that catches RuntimeError then catches it in every process."""


class Processes:
    """The process group over which DDP averages; without a group, every method is local and free.

    Every exchange begins with a flag. If some process has failed, all raise with the message of the first one that
    failed, and none keeps waiting. The same flag precedes every exchange that the forward or the backward itself makes
    over the group through a function of `torch.distributed` (batch statistics, for example). So a process that fails
    between two exchanges meets the others at the next flag.

    Not covered: exchanges over a part of the group, torch's functional collectives, and a process that fails within an
    exchange or dies. The other processes then wait until the group's timeout, as they would in training.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._device = torch.device("cpu")
        if group is not None and dist.get_backend(group) == "nccl":
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._told = False

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self._group is None or dist.get_rank(self._group) == 0

    @property
    def size(self) -> int:
        """The number of processes."""
        return 1 if self._group is None else dist.get_world_size(self._group)

    def mean(self, local: Callable[[], list[Tensor]]) -> list[Tensor]:
        """The means, over the processes, of the tensors that `local` returns in each process."""
        if self._group is None:
            return local()
        tensors = self.each(lambda: [self._sendable(tensor) for tensor in local()])
        waits = [dist.all_reduce(tensor, group=self._group, async_op=True) for tensor in tensors]
        for wait in waits:
            wait.wait()
        return list(torch._foreach_div(tensors, float(dist.get_world_size(self._group))))

    def each(self, work: Callable[[], T]) -> T:
        """`work()`, which may exchange batch statistics; if it fails in one process, all raise."""
        if self._group is None:
            return work()
        with self._announced():
            return self._tried(work)

    def _sendable(self, tensor: Tensor) -> Tensor:
        tensor = tensor.contiguous()
        return tensor if self._device.type == "cpu" else tensor.to(self._device)

    def together(self, work: Callable[[], T]) -> T:
        """`work()`, which may call `mean`; if it fails in one process, all raise."""
        if self._group is None:
            return work()
        self._told = False
        return self._tried(work)

    def decided(self, choice: bool) -> bool:
        """The choice of the group's first process."""
        if self._group is None:
            return choice
        flag = torch.tensor([float(choice)], device=self._device)
        dist.broadcast(flag, group=self._group, group_src=0)
        return bool(flag.item())

    def _tried(self, work: Callable[[], T]) -> T:
        try:
            result = work()
        except BaseException as error:
            if not self._told:
                self._exchange(error)
            raise
        self._check()
        return result

    def _check(self, coming: int = 0) -> None:
        """Raise in all processes if one has failed, or if they are not about to make the same exchange `coming`."""
        failure = self._exchange(None, coming)
        if failure is not None:
            raise failure

    @steady
    def _exchange(self, error: BaseException | None, coming: int = 0) -> FailedElsewhere | None:
        """The exception to raise if a process has failed; None if all go on, to the exchange number `coming`."""
        # The functions of `distributed_c10d` themselves: those in `torch.distributed` are replaced by `_announced`.
        exchanges = dist.distributed_c10d
        rank, size = dist.get_rank(self._group), dist.get_world_size(self._group)
        # Of all processes that failed, the one with the smallest rank sends the largest flag.
        flags = torch.tensor([0 if error is None else size - rank, coming, -coming], device=self._device)
        exchanges.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        failed, most, least = flags.tolist()
        self._told = bool(failed) or most != -least
        if not self._told:
            return None
        if not failed:
            return FailedElsewhere(
                "The processes do not make the same exchanges: some are about to exchange values while others make "
                "another exchange, or have finished the pass. All forwards must make the same exchanges in the same "
                "order, as in training."
            )
        kind = FailedElsewhereAtRuntime if isinstance(error, RuntimeError) else FailedElsewhere
        message = (
            f"The measurement failed in process {size - failed} of {size}. {type(error).__name__}: {error}".encode()
        )
        sent = bytes([kind is FailedElsewhereAtRuntime]) + message
        text = torch.tensor([*sent[:_TEXT].ljust(_TEXT)], dtype=torch.uint8, device=self._device)
        exchanges.broadcast(text, group=self._group, group_src=size - failed)
        runtime, *letters = text.tolist()
        failure = FailedElsewhereAtRuntime if runtime else FailedElsewhere
        return failure(bytes(letters).decode(errors="replace").strip())

    @contextmanager
    def _announced(self) -> Iterator[None]:
        """While this context lasts, exchanges of `torch.distributed` over this group begin with the flag."""
        functions = vars(dist)
        original = {name: functions[name] for name in _EXCHANGES if name in functions}
        try:
            for name, exchange in original.items():
                functions[name] = self._announcing(exchange, 1 + _EXCHANGES.index(name))
            yield
        finally:
            functions.update(original)

    def _announcing(self, exchange: Callable[..., Any], number: int) -> Callable[..., Any]:
        @steady
        def call(*args: Any, **kwargs: Any) -> Any:
            group = kwargs.get("group") or next((a for a in args if isinstance(a, dist.ProcessGroup)), None)
            if group is self._group or self._is_world(group):
                # `all_reduce` (number 1) needs tensors of the same size in all processes, so the size is compared, too.
                size = args[0].numel() if number == 1 and args else 0
                self._check(number + len(_EXCHANGES) * size)
            return exchange(*args, **kwargs)

        return wraps(exchange)(call)

    def _is_world(self, group: dist.ProcessGroup | None) -> bool:
        """Whether this group and `group` both consist of all processes."""
        everyone = dist.get_world_size()
        return dist.get_world_size(self._group) == everyone and dist.get_world_size(group) == everyone
