"""`reproduce`: the runs that a list of entries still lacks, made here or in several processes, and the verdicts.

Nothing finished is run again; what is finished is on disk at once. With a limit on the time no run is begun that is
not likely to end within it, one that does not is given up, and the next call makes it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from normscope.choices import check_choice
from normscope.reproduction.entry import Entry, Judged, Statement, judge
from normscope.reproduction.experiment import SCALES, Experiment, Place, Run
from normscope.reproduction.registry import all_entries, all_experiments
from normscope.reproduction.store import Store

# Longer than this on a CPU is asked about first.
LONG = 600.0


class OutOfTime(Exception):
    """The run did not end within the limit."""


class RunFailed(RuntimeError):
    """A run raised; what the others finished is kept."""


@dataclass(frozen=True)
class Job:
    """A run that is not there yet."""

    experiment: Experiment
    cell: str
    scale: str
    seed: int

    def __str__(self) -> str:
        return f"{self.experiment.name}, {self.cell}, {self.scale}, seed {self.seed}"


def missing(names: Sequence[str], store: Store, scale: str, seeds: int | None = None) -> list[Job]:
    """Runs that these entries or statements need and the store lacks: seed by seed, in the order of the names.

    seeds: of every cell; None: as many as the statements ask for.
    """
    check_choice("scale", scale, SCALES)
    wanted = [_wanted(name) for name in names]
    most = max((n if seeds is None else seeds for _, _, n in wanted), default=0)
    jobs: dict[tuple[str, str, int], Job] = {}
    for seed in range(most):
        for entry, statement, n in wanted:
            if seed >= (n if seeds is None else seeds):
                continue
            for experiment, cell in entry.cells(statement):
                needed = entry.curves(experiment, cell) if statement is None else set(statement.curves)
                if seed not in {run.seed for run in store.runs(experiment, cell, scale) if run.curves.keys() >= needed}:
                    jobs.setdefault((experiment.name, cell, seed), Job(experiment, cell, scale, seed))
    return list(jobs.values())


def _wanted(name: str) -> tuple[Entry, Statement | None, int]:
    """An entry, or one of its statements, and the seeds it needs."""
    first, _, key = name.partition("/")
    check_choice("entry", first, all_entries())
    entry = all_entries()[first]
    by_key = {statement.key: statement for statement in entry.statements}
    if key:
        check_choice(f"statement of {first}", key, by_key)
        return entry, by_key[key], by_key[key].n
    return entry, None, max((statement.n for statement in entry.statements), default=1)


def reproduce(
    *names: str,
    out: str | Path = "results/reproduce",
    scale: str = "small",
    seeds: int | None = None,
    device: str | None = None,
    root: str | Path | None = None,
    jobs: int = 1,
    minutes: float | None = None,
    yes: bool = False,
    on_run: Callable[[Job, float | None], None] = lambda job, seconds: None,
) -> list[Judged]:
    """Makes the runs that the entries `names` still lack, and judges them from all that is stored.

    Args:
        names: of entries, or entry/statement, as `normscope reproduce --list` shows them.
        out: folder of the results.
        scale: "small" (reduced settings, a laptop) or "paper" (the sources' own).
        seeds: 0 to seeds - 1 of every cell; None: as many as the rules ask for.
        device: "cpu" or "cuda"; the GPU where there is one.
        root: of the data sets, as for `normscope.data.load`.
        jobs: processes at once. On a GPU several of them fill the time in which one waits for Python.
        minutes: stop after so long; everything finished is kept.
        yes: go on though the estimate is beyond ten minutes on a CPU.
        on_run: called with a job when it begins (None) and when it is finished (its seconds).
    """
    if not names:
        raise ValueError("Name at least one entry; normscope reproduce --list shows them.")
    if jobs < 1 or (seeds is not None and seeds < 1):
        raise ValueError(f"seeds and jobs count from 1 on; got seeds={seeds}, jobs={jobs}.")
    store = Store(out)
    todo = missing(names, store, scale, seeds)
    if todo:
        device = device or _best_device()
        _check_time(todo, device, jobs, minutes, yes)
        _check_data(todo, root)
        place = Place(device, None if root is None else str(root))
        for job, run in _run_all(todo, place, jobs, minutes, on_run):
            store.add(job.experiment, scale, run)
            on_run(job, run.seconds)
    chosen = dict.fromkeys(_wanted(name)[0] for name in names)
    return [judged for entry in chosen for judged in judge(entry, store)]


def estimate(todo: Sequence[Job], device: str, jobs: int) -> float:
    """Seconds, from what such runs took."""
    return sum(job.experiment.cost(job.scale, device) for job in todo) / jobs


def _best_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _check_time(todo: Sequence[Job], device: str, jobs: int, minutes: float | None, yes: bool) -> None:
    expected = estimate(todo, device, jobs)
    limited = minutes is not None and minutes * 60 <= LONG
    if device == "cpu" and expected > LONG and not yes and not limited:
        raise ValueError(
            f"{len(todo)} runs at this scale would take about {_spoken(expected)} on this CPU. Add --yes to start them "
            "all the same (they can be stopped and resumed), or take --scale small, --minutes, or a GPU."
        )


def _spoken(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes"


def _check_data(todo: Sequence[Job], root: str | Path | None) -> None:
    """A data set that is not there is said before anything is run."""
    from normscope.data.files import data_root, locate

    for name in dict.fromkeys(job.experiment.data for job in todo):
        if name is not None:
            locate(name, data_root(root))


def _run_all(
    todo: Sequence[Job],
    place: Place,
    jobs: int,
    minutes: float | None,
    on_run: Callable[[Job, float | None], None],
) -> Iterator[tuple[Job, Run]]:
    deadline = None if minutes is None else time.time() + 60 * minutes
    took: list[float] = []

    def in_time() -> bool:
        return deadline is None or time.time() + max(took, default=0.0) < deadline

    if jobs == 1:
        for job in todo:
            if not in_time():
                return
            on_run(job, None)
            run = run_job(job.experiment.name, job.cell, job.scale, job.seed, place.device, place.root, deadline)
            if run is None:
                return
            took.append(run.seconds)
            yield job, run
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        waiting, running = list(todo), dict[Future[Run | None], Job]()
        failed: list[str] = []
        try:
            while waiting or running:
                while waiting and len(running) < jobs and in_time():
                    job = waiting.pop(0)
                    on_run(job, None)
                    arguments = (job.experiment.name, job.cell, job.scale, job.seed, place.device, place.root, deadline)
                    running[pool.submit(run_job, *arguments)] = job
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job, error = running.pop(future), future.exception()
                    if error is not None:
                        failed.append(f"{job}: {type(error).__name__}: {error}")
                        continue
                    run = future.result()
                    if run is not None:
                        took.append(run.seconds)
                        yield job, run
            if failed:
                raise RunFailed(f"{len(failed)} runs failed, the others are kept. {failed[0]}")
        finally:
            pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def run_job(
    name: str, cell: str, scale: str, seed: int, device: str, root: str | None, deadline: float | None
) -> Run | None:
    """One run; None where the time ran out. Names instead of objects, so that another process can make it."""
    import torch

    from normscope.environment import environment

    experiment = all_experiments()[name]
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")

    def tick(step: int) -> None:
        if deadline is not None and time.time() > deadline:
            raise OutOfTime

    started = time.perf_counter()
    try:
        curves = experiment.run(experiment.plan(cell, scale), seed, Place(device, root, tick))
    except OutOfTime:
        return None
    finally:
        torch.set_float32_matmul_precision(precision)
    return Run(cell, seed, curves, time.perf_counter() - started, dict(environment(device)))
