"""An engine that makes the rehearsals of a wave as tasks of a Ray cluster; needs the extra `ray`."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from normscope.importing.extras import need
from normscope.tuning.rehearsal import Rehearsal, rehearse
from normscope.tuning.stage import Stage


class Ray:
    """The Ray engine: one task for each rate.

    It uses the cluster this process is connected to, or the cluster at `address`; without both, it starts Ray on this
    machine and stops it at the end. A task has as many threads as this process, so that both engines give the same
    bits.
    """

    note = ""

    def __init__(self, address: str | None = None) -> None:
        self._ray = need("ray", "ray")
        self._running: list[Any] = []
        self._started = not self._ray.is_initialized()
        if self._started:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            self._ray.init(address=address or "local", include_dashboard=False, log_to_driver=False)

    def run(self, stage: Stage, rates: Sequence[float], steps: int) -> Iterator[Rehearsal]:
        """Rehearse the rates side by side; yields them in their order."""
        threads = torch.get_num_threads()
        task = self._ray.remote(num_cpus=threads, num_gpus=int(stage.device.type == "cuda"), max_retries=3)(_task)
        shared = self._ray.put(stage)
        self._running = [task.remote(shared, rate, steps, threads) for rate in rates]
        while self._running:
            yield self._ray.get(self._running[0])
            self._running.pop(0)

    def close(self) -> None:
        """Cancel running tasks, and stop Ray if it was started here."""
        for task in self._running:
            self._ray.cancel(task)
        if self._started:
            self._ray.shutdown()


def _task(stage: Stage, rate: float, steps: int, threads: int) -> Rehearsal:
    torch.set_num_threads(threads)
    return rehearse(stage, rate, steps)
