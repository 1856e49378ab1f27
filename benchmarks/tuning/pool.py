"""Worker processes of one thread each, pinned to a core, that make one job after another."""

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

Work = Callable[[Any], dict[str, Any]]


def _serve(connection: Connection, work: Work, core: int | None) -> None:
    import torch

    torch.set_num_threads(1)
    if core is not None:
        os.sched_setaffinity(0, {core})
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            connection.send((work(job), None))
        except Exception:
            connection.send((None, traceback.format_exc()))


class Pool:
    """Processes that call `work(job)`; `work` is a function of a module.

    Results come in any order from `results`. Processes are started afresh, so a dead one costs only its job.
    """

    def __init__(self, work: Work, jobs: int) -> None:
        os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
        self.context = multiprocessing.get_context("spawn")
        self.work = work
        cores = sorted(os.sched_getaffinity(0))
        self.cores = [cores[i] for i in range(jobs)] if jobs == len(cores) else [None] * jobs
        self.idle: list[tuple[Any, Connection, int | None]] = []
        self.busy: dict[Connection, tuple[Any, Any, int | None, float]] = {}

    def room(self) -> bool:
        """Whether another job can start now."""
        return len(self.busy) < len(self.cores)

    def start(self, job: Any) -> None:
        """Give a job to an idle process, or to a new one."""
        if not self.idle:
            self.idle.append(self._new())
        process, connection, core = self.idle.pop()
        connection.send(job)
        self.busy[connection] = (process, job, core, time.monotonic())

    def _new(self) -> tuple[Any, Connection, int | None]:
        taken = {core for *_, core, _ in self.busy.values()}
        core = next((c for c in self.cores if c not in taken), None)
        mine, theirs = self.context.Pipe()
        process = self.context.Process(target=_serve, args=(theirs, self.work, core), daemon=True)
        process.start()
        theirs.close()
        return process, mine, core

    def results(self, timeout: float) -> Iterator[tuple[Any, dict[str, Any] | None, str | None]]:
        """Finished jobs with result or error, as (job, result, error); nothing after `timeout` seconds."""
        for ready in wait(list(self.busy), timeout):
            assert isinstance(ready, Connection)
            process, job, core, _ = self.busy.pop(ready)
            try:
                result, error = ready.recv()
                self.idle.append((process, ready, core))
            except (EOFError, ConnectionResetError):
                process.join(5)
                result, error = None, f"the process ended with {process.exitcode}"
            yield job, result, error

    def close(self) -> None:
        """End all processes; jobs under way are lost."""
        for process, *_ in [*self.busy.values(), *self.idle]:
            process.terminate()
