"""Make runs in this process or in several, within a time limit.

With a limit, a run that is not likely to end within it is not begun; a run that exceeds it is given up, and the next
call makes it. When the call is stopped, its processes stop too.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.process import BaseProcess
from threading import Thread

from normscope.papers.experiment import Experiment, Place, Run
from normscope.papers.registry import all_experiments


class OutOfTime(Exception):
    """The run did not end within the limit."""


class RunFailed(RuntimeError):
    """A run raised an error; finished runs are kept."""


@dataclass(frozen=True)
class Job:
    """A run that is not stored yet."""

    experiment: Experiment
    cell: str
    scale: str
    seed: int

    def __str__(self) -> str:
        return f"{self.experiment.name}, {self.cell}, {self.scale}, seed {self.seed}"


def run_all(
    todo: Sequence[Job],
    place: Place,
    jobs: int,
    minutes: float | None,
    tried: bool,
    on_run: Callable[[Job, float | None], None],
) -> Iterator[tuple[Job, Run]]:
    # One clock for all processes of this machine, which no correction of the time of day moves.
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    # Longest time of a run so far, by experiment; without one, the experiment's own estimate counts.
    took: dict[str, float] = {}

    def fits(job: Job) -> bool:
        expected = took.get(job.experiment.name, 0.0 if tried else job.experiment.cost(job.scale, place.device))
        return deadline is None or time.monotonic() + expected < deadline

    if jobs == 1:
        for job in todo:
            if not fits(job):
                continue
            on_run(job, None)
            run = run_job(job.experiment.name, job.cell, job.scale, job.seed, place.device, place.root, deadline)
            if run is not None:
                took[job.experiment.name] = max(run.seconds, took.get(job.experiment.name, 0.0))
                yield job, run
        return
    others = set(active_children())
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_serve) as pool:
        waiting, running = list(todo), dict[Future[Run | None], Job]()
        failed: dict[Job, str] = {}
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    job = waiting.pop(0)
                    if not fits(job):
                        continue
                    on_run(job, None)
                    arguments = (job.experiment.name, job.cell, job.scale, job.seed, place.device, place.root, deadline)
                    running[pool.submit(run_job, *arguments)] = job
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job, error = running.pop(future), future.exception()
                    if error is not None:
                        failed[job] = f"{job}: {type(error).__name__}: {error}"
                        continue
                    run = future.result()
                    if run is not None:
                        took[job.experiment.name] = max(run.seconds, took.get(job.experiment.name, 0.0))
                        yield job, run
            if failed:
                first = next(failed[job] for job in todo if job in failed)
                raise RunFailed(f"{len(failed)} runs failed, the others are kept. {first}")
        except BrokenExecutor as error:
            raise RunFailed(
                "A process was ended from outside, for its memory perhaps. What was finished is kept: run the same "
                f"command again, with fewer than {jobs} --jobs if that is the reason."
            ) from error
        except BaseException:
            # The call was stopped: end the runs under way.
            for process in set(active_children()) - others:
                process.terminate()
            raise


def _serve() -> None:
    """One thread in each process; a process ends once its parent has ended, for whatever reason."""
    import torch

    torch.set_num_threads(1)
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def run_job(
    name: str, cell: str, scale: str, seed: int, device: str, root: str | None, deadline: float | None
) -> Run | None:
    """Make one run; None where the time ran out. Arguments are names, so that another process can make the run."""
    import torch

    from normscope.results.environment import environment

    experiment = all_experiments()[name]
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")

    def tick(step: int) -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise OutOfTime

    started = time.perf_counter()
    try:
        curves = experiment.run(experiment.plan(cell, scale), seed, Place(device, root, tick))
    except OutOfTime:
        return None
    finally:
        torch.set_float32_matmul_precision(precision)
    return Run(cell, seed, curves, time.perf_counter() - started, dict(environment(device)))
