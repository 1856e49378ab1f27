"""Several processes that measure one run: they average what they find, and fail together or not at all."""

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
# Bytes of an error's text that the others are told.
_TEXT = 512


class FailedElsewhere(Exception):
    """Another process could not measure; the message says which, and what it said."""


class FailedElsewhereAtRuntime(FailedElsewhere, RuntimeError):
    """As the other process raised a RuntimeError: who catches that catches it in all processes."""


class Processes:
    """The group over which DDP averages; without one, everything here is local and free.

    Every exchange begins with a flag that says whether some process has failed: then all raise, with the message of the
    first that failed, and none waits on. So does every exchange that a forward or a backward makes itself over the
    group, of batch statistics or of anything else through a function of `torch.distributed`: one that fails between
    two of them meets the others at the next flag. Out of reach are exchanges over a part of the group, those by
    torch's functional collectives, and a process that fails within an exchange or ends without a word: the others wait
    there as in training, until the group's timeout.
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
        with self._announced():
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
        except BaseException as error:
            if not self._told:
                self._exchange(error)
            raise
        self._check()
        return found

    def _check(self, coming: int = 0) -> None:
        """None has failed so far and all come to the same exchange, or all raise."""
        failure = self._exchange(None, coming)
        if failure is not None:
            raise failure

    @steady
    def _exchange(self, error: BaseException | None, coming: int = 0) -> FailedElsewhere | None:
        """What to raise where a process has failed; None where all go on, to the exchange of the number `coming`."""
        # The group's functions, not those of `torch.distributed`, which announce themselves.
        exchanges = dist.distributed_c10d
        rank, size = dist.get_rank(self._group), dist.get_world_size(self._group)
        # The first that failed has the largest number.
        flags = torch.tensor([0 if error is None else size - rank, coming, -coming], device=self._device)
        exchanges.all_reduce(flags, op=dist.ReduceOp.MAX, group=self._group)
        failed, most, least = flags.tolist()
        self._told = bool(failed) or most != -least
        if not self._told:
            return None
        if not failed:
            return FailedElsewhere(
                "The processes do not run the same: some come to an exchange of values where others come to another, "
                "or to the end of the pass. Their forwards must exchange alike, as they must in training."
            )
        kind = FailedElsewhereAtRuntime if isinstance(error, RuntimeError) else FailedElsewhere
        said = f"The measurement failed in process {size - failed} of {size}. {type(error).__name__}: {error}".encode()
        sent = bytes([kind is FailedElsewhereAtRuntime]) + said
        text = torch.tensor([*sent[:_TEXT].ljust(_TEXT)], dtype=torch.uint8, device=self._device)
        exchanges.broadcast(text, group=self._group, group_src=size - failed)
        runtime, *letters = text.tolist()
        found = FailedElsewhereAtRuntime if runtime else FailedElsewhere
        return found(bytes(letters).decode(errors="replace").strip())

    @contextmanager
    def _announced(self) -> Iterator[None]:
        """Inside, exchanges of `torch.distributed` over this group ask first whether all have come so far."""
        home = vars(dist)
        own = {name: home[name] for name in _EXCHANGES if name in home}
        try:
            for name, exchange in own.items():
                home[name] = self._announcing(exchange, 1 + _EXCHANGES.index(name))
            yield
        finally:
            home.update(own)

    def _announcing(self, exchange: Callable[..., Any], number: int) -> Callable[..., Any]:
        @steady
        def call(*args: Any, **kwargs: Any) -> Any:
            group = kwargs.get("group") or next((a for a in args if isinstance(a, dist.ProcessGroup)), None)
            if group is self._group or self._is_world(group):
                # Sums need tensors of one size in all processes.
                size = args[0].numel() if number == 1 and args else 0
                self._check(number + len(_EXCHANGES) * size)
            return exchange(*args, **kwargs)

        return wraps(exchange)(call)

    def _is_world(self, group: dist.ProcessGroup | None) -> bool:
        """Whether both are of all processes."""
        ours = dist.get_world_size(self._group) == dist.get_world_size()
        return ours and dist.get_world_size(group) == dist.get_world_size()
