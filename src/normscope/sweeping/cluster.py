"""Groups of cells as tasks of a Ray cluster; comes with the extra `ray`.

A task declares the plan's threads as CPUs, and one GPU where it trains on one; Ray runs as many at once as it has room
for and runs a task again whose worker has died. Workers build the plan themselves, once each, and send outcomes back;
they need normscope, and data sets that have files under the same root. The caller alone writes the journal.
"""

import json
import os
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import torch

from normscope.extras import need
from normscope.sweeping.engines import Began
from normscope.sweeping.networks import prepare
from normscope.sweeping.outcome import Outcome
from normscope.sweeping.plan import Cell, Plan
from normscope.sweeping.trainer import Advance, Trainer, even_groups, most_members


class Ray:
    """Joins the Ray this process is connected to, else the cluster at `address`, else starts one here until the end."""

    def __init__(
        self, plan: Plan, *, device: str, root: str | os.PathLike[str] | None = None, address: str | None = None
    ) -> None:
        self._ray = need("ray", "ray")
        # Mistakes are said here, before a cluster is asked for anything; it need not have this machine's device.
        prepare(plan, root, torch.device("cpu"))
        self._plan, self._device, self._root = plan, device, None if root is None else str(root)
        self._needs = {"CPU": plan.threads, "GPU": int(device.startswith("cuda"))}
        self._running: dict[Any, int] = {}
        self._started = not self._ray.is_initialized()
        if self._started:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            self._ray.init(address=address or "local", include_dashboard=False, log_to_driver=False)
        self._check_room(here=self._started and address is None)

    def _check_room(self, *, here: bool) -> None:
        """A task that fits nowhere waits for ever: refused on a Ray of this machine, said where a cluster may grow."""
        has = self._ray.cluster_resources()
        if all(has.get(what, 0) >= count for what, count in self._needs.items()):
            return
        words = ", ".join(f"{count} {what} ({has.get(what, 0):g} there)" for what, count in self._needs.items())
        if here:
            self.close()
            raise ValueError(
                f"A group needs {words}. Lower the plan's threads, or name another --device or an --address."
            )
        warnings.warn(f"A group needs {words}; it waits until the cluster has grown.", stacklevel=4)

    def close(self) -> None:
        for task in self._running:
            self._ray.cancel(task)
        if self._started:
            self._ray.shutdown()

    def group_size(self, cells: int) -> int:
        """The groups of `local`, so that both give the same bits; a worker out of memory halves its own."""
        return even_groups(cells, most_members(self._device))

    def run(
        self, groups: Sequence[Sequence[Cell]], size: int, began: Began, advance: Advance
    ) -> Iterator[list[Outcome]]:
        needs = {"num_cpus": self._needs["CPU"], "num_gpus": self._needs["GPU"]}
        task = self._ray.remote(**needs, max_retries=3)(train_group)
        described = json.dumps(asdict(self._plan))
        waiting, running = deque(groups), self._running
        while waiting or running:
            while waiting and len(running) < self._slots():
                cells = waiting.popleft()
                began(cells)
                running[task.remote(described, self._device, self._root, list(cells), size)] = len(cells)
            (done,), _ = self._ray.wait(list(running), num_returns=1)
            advance(running.pop(done))
            yield self._ray.get(done)

    def _slots(self) -> int:
        """Tasks that fit at once."""
        has = self._ray.cluster_resources()
        return max(1, int(min(has.get(what, 0) / count for what, count in self._needs.items() if count)))


def train_group(described: str, device: str, root: str | None, cells: Sequence[Cell], size: int) -> list[Outcome]:
    """What a worker does."""
    return [found for group in _trainer(described, device, root).train(cells, size=size) for found in group]


@lru_cache(maxsize=1)
def _trainer(described: str, device: str, root: str | None) -> Trainer:
    """Kept by the worker for its next group: data are read and steps compiled once."""
    return Trainer(Plan.from_dict(json.loads(described)), device=device, root=root)
