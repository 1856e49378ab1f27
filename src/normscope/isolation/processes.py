"""Several processes that measure one run: they average what they find, and fail together or not at all."""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
_ELSEWHERE = "The measurement failed in another process, which says why."


class FailedElsewhere(RuntimeError):
    """Another process could not measure; it says why."""


class Processes:
    """The group over which DDP averages; without one, everything here is local and free.

    Every exchange begins with a flag that says whether some process has failed: then all raise, and none waits on.
    synced: forward and backward exchange batch statistics of their own, so the flag is asked for before each of them.
    One that fails within such a forward leaves the others waiting there, as it does in training.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, synced: bool = False) -> None:
        self._group = group
        self._synced = synced and group is not None
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
        return 1 if self._group is None else dist.get_world_size(self._group)

    def mean(self, local: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Means over the processes of what `local` finds in each."""
        if self._group is None:
            return local()
        found = self.each(lambda: [self._sendable(tensor) for tensor in local()])
        waits = [dist.all_reduce(tensor, group=self._group, async_op=True) for tensor in found]
        for wait in waits:
            wait.wait()
        return list(torch._foreach_div(found, float(dist.get_world_size(self._group))))

    def each(self, work: Callable[[], T]) -> T:
        """`work()`, a part that may exchange statistics; where it fails in one process, all raise."""
        if self._group is None:
            return work()
        self.meet()
        return self._tried(work)

    def _sendable(self, tensor: Tensor) -> Tensor:
        tensor = tensor.contiguous()
        return tensor if self._device.type == "cpu" else tensor.to(self._device)

    def together(self, work: Callable[[], T]) -> T:
        """`work()`, or an exception in all processes if it fails in one; `work` may call `mean`."""
        if self._group is None:
            return work()
        self._told = False
        return self._tried(work)

    def meet(self) -> None:
        """Where statistics are synchronized: all processes have come here, or all raise."""
        if self._synced and self._exchange(failed=False):
            raise FailedElsewhere(_ELSEWHERE)

    def decided(self, choice: bool) -> bool:
        """The choice of the group's first process."""
        if self._group is None:
            return choice
        flag = torch.tensor([float(choice)], device=self._device)
        dist.broadcast(flag, group=self._group, group_src=0)
        return bool(flag.item())

    def _tried(self, work: Callable[[], T]) -> T:
        try:
            found = work()
        except Exception:
            if not self._told:
                self._exchange(failed=True)
            raise
        if self._exchange(failed=False):
            raise FailedElsewhere(_ELSEWHERE)
        return found

    def _exchange(self, *, failed: bool) -> bool:
        flag = torch.tensor([float(failed)], device=self._device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group)
        self._told = bool(flag.item())
        return self._told
