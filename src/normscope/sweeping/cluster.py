"""An engine that trains groups of cells as tasks of a Ray cluster; needs the extra `ray`.

A task declares the plan's threads as CPUs, and one GPU if it trains on a GPU. Ray runs as many tasks at once as have
room, and repeats a task whose worker has died. Each worker builds the plan itself, once, and sends outcomes back. A
worker needs normscope, and data sets with files need them under the same root. Only the caller writes the journal.
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

from normscope.importing.extras import need
from normscope.sweeping.engines import Began
from normscope.sweeping.networks import prepare
from normscope.sweeping.outcome import Outcome
from normscope.sweeping.plan import Cell, Plan
from normscope.sweeping.trainer import Advance, Trainer, even_groups, most_members


class Ray:
    """The Ray engine.

    It uses the cluster this process is connected to, or the cluster at `address`; without both, it starts Ray on this
    machine and stops it at the end.
    """

    def __init__(
        self, plan: Plan, *, device: str, root: str | os.PathLike[str] | None = None, address: str | None = None
    ) -> None:
        self._ray = need("ray", "ray")
        # Mistakes in the plan are reported here, before Ray starts; on the CPU, since this machine may lack the device.
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
        """Raise if a task has no room on this machine; warn if it lacks room on a cluster, which may grow."""
        has = self._ray.cluster_resources()
        if all(has.get(what, 0) >= count for what, count in self._needs.items()):
            return
        words = ", ".join(f"{count} {what} ({has.get(what, 0):g} available)" for what, count in self._needs.items())
        if here:
            self.close()
            raise ValueError(
                f"A group needs {words}. Lower the plan's threads, or name another --device or an --address."
            )
        warnings.warn(f"A group needs {words}; it waits until the cluster has grown.", stacklevel=4)

    def close(self) -> None:
        """Cancel running tasks, and stop Ray if it was started here."""
        for task in self._running:
            self._ray.cancel(task)
        if self._started:
            self._ray.shutdown()

    def group_size(self, cells: int) -> int:
        """The group size of `local`, so that both engines give the same bits; a worker halves it if out of memory."""
        return even_groups(cells, most_members(self._device))

    def run(
        self, groups: Sequence[Sequence[Cell]], size: int, began: Began, advance: Advance
    ) -> Iterator[list[Outcome]]:
        """Train the groups as tasks; yields the outcomes of each group as it finishes."""
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
        """The number of tasks that can run at the same time."""
        has = self._ray.cluster_resources()
        return max(1, int(min(has.get(what, 0) / count for what, count in self._needs.items() if count)))


def train_group(described: str, device: str, root: str | None, cells: Sequence[Cell], size: int) -> list[Outcome]:
    """The task of a worker: train one group of cells."""
    return [outcome for group in _trainer(described, device, root).train(cells, size=size) for outcome in group]


@lru_cache(maxsize=1)
def _trainer(described: str, device: str, root: str | None) -> Trainer:
    """The worker's trainer, cached for its next group, so that data are read and steps compiled once."""
    return Trainer(Plan.from_dict(json.loads(described)), device=device, root=root)
