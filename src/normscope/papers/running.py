"""`reproduce`: make the missing runs of a list of entries, and judge the entries from all stored runs.

A finished run is written at once and never made again.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from normscope.messages.choices import check_choice
from normscope.papers.entry import Entry, JudgedStatement, Statement, judge
from normscope.papers.experiment import SCALES, Place
from normscope.papers.pool import Job, run_all
from normscope.papers.registry import all_entries
from normscope.papers.store import Store

# Seconds; a longer estimate on a CPU needs `yes`.
LONG = 600.0


def missing(names: Sequence[str], store: Store, scale: str, seeds: int | None = None) -> list[Job]:
    """Runs that these entries or statements need and the store lacks: seed by seed, in the order of the names.

    seeds: of every cell; None: as many as the statements ask for.
    """
    check_choice("scale", scale, SCALES)
    wanted = [_wanted(name, scale) for name in names]
    most = max((n if seeds is None else seeds for _, _, n in wanted), default=0)
    jobs: dict[tuple[str, str, int], Job] = {}
    for seed in range(most):
        for entry, statement, n in wanted:
            if seed >= (n if seeds is None else seeds):
                continue
            judged = [each for each in entry.statements if scale in each.scales and statement in (None, each)]
            for experiment, cell in entry.cells():
                users = [each for each in judged if each.uses(experiment, cell)]
                if entry.statements and not users:
                    continue
                needed = {name for each in users for name in each.curves}
                if seed not in {run.seed for run in store.runs(experiment, cell, scale) if run.curves.keys() >= needed}:
                    jobs.setdefault((experiment.name, cell, seed), Job(experiment, cell, scale, seed))
    return list(jobs.values())


def named(name: str) -> tuple[Entry, Statement | None]:
    """An entry, or one of its statements, by its name."""
    first, _, key = name.partition("/")
    check_choice("entry", first, all_entries())
    entry = all_entries()[first]
    by_key = {statement.key: statement for statement in entry.statements}
    if key:
        check_choice(f"statement of {first}", key, by_key)
    return entry, by_key.get(key)


def of_names(judged: Sequence[JudgedStatement], names: Sequence[str]) -> list[JudgedStatement]:
    """The judged statements whose name, or whose entry's name, is given; each once."""
    return [claim for claim in judged if claim.name in names or claim.entry.name in names]


def _wanted(name: str, scale: str) -> tuple[Entry, Statement | None, int]:
    """The entry, its statement if one is named, and the seeds needed."""
    entry, statement = named(name)
    own = entry.statements if statement is None else (statement,)
    counts = [each.n for each in own if scale in each.scales]
    if own and not counts:
        raise ValueError(
            f"{name} has no rule at the {scale} scale: its numbers would decide nothing. Take --scale paper."
        )
    return entry, statement, max(counts, default=1)


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
) -> list[JudgedStatement]:
    """Make the runs that the entries `names` lack, and judge the entries from all stored runs.

    Args:
        names: entries, or entry/statement, as `normscope reproduce --list` shows them.
        out: folder of the results.
        scale: "small" (reduced settings, a laptop) or "paper" (the sources' own).
        seeds: 0 to seeds - 1 of every cell; None: as many as the rules ask for.
        device: "cpu" or "cuda"; the GPU where there is one.
        root: folder of the data sets, as for `normscope.data.load`.
        jobs: processes at once. On a GPU several of them fill the time in which one waits for Python.
        minutes: stop after so long; everything finished is kept.
        yes: go on though the estimate is beyond ten minutes on a CPU, or begin runs that are not likely to end
            within `minutes`.
        on_run: called with a job when it begins (None) and when it is finished (its seconds).

    Returns:
        The verdicts of the entries, in the order of `names`.

    Raises:
        ValueError: an unknown name, or an estimate beyond ten minutes on a CPU without yes=.

    Example:
        >>> import tempfile
        >>> verdicts = reproduce("decoupling/orthogonal", out=tempfile.mkdtemp(), device="cpu")
        >>> verdicts[0].verdict
        'reproduced'
    """
    if not names:
        raise ValueError("Name at least one entry; normscope reproduce --list shows them.")
    if jobs < 1 or (seeds is not None and seeds < 1):
        raise ValueError(f"seeds and jobs count from 1 on; got seeds={seeds}, jobs={jobs}.")
    if minutes is not None and not minutes > 0:
        raise ValueError(f"minutes must be above 0; got {minutes}. Leave it out to run without a limit.")
    store = Store(out)
    todo = missing(names, store, scale, seeds)
    if todo:
        from normscope.results.environment import known_device

        device = known_device(device)
        _check_time(todo, device, jobs, minutes, yes)
        _check_data(todo, root)
        place = Place(device, None if root is None else str(root))
        for job, run in run_all(todo, place, jobs, minutes, yes, on_run):
            store.add(job.experiment, scale, run)
            on_run(job, run.seconds)
    chosen = dict.fromkeys(named(name)[0] for name in names)
    return of_names([judged for entry in chosen for judged in judge(entry, store)], names)


def estimate(todo: Sequence[Job], device: str, jobs: int) -> float:
    """Seconds that these runs should take, from the experiments' measured times."""
    return sum(job.experiment.cost(job.scale, device) for job in todo) / jobs


def _check_time(todo: Sequence[Job], device: str, jobs: int, minutes: float | None, yes: bool) -> None:
    expected = estimate(todo, device, jobs)
    shortest = min(job.experiment.cost(job.scale, device) for job in todo)
    if minutes is not None and shortest > 60 * minutes and not yes:
        raise ValueError(
            f"The shortest of {len(todo)} runs takes about {_spoken(shortest)} on such a device, and one that does not "
            f"end within --minutes {minutes:g} is lost. Allow more, or add --yes to try all the same."
        )
    limited = minutes is not None and minutes * 60 <= LONG
    if device == "cpu" and expected > LONG and not yes and not limited:
        raise ValueError(
            f"{len(todo)} runs at this scale would take about {_spoken(expected)} on this CPU. Add --yes to start them "
            "all the same (they can be stopped and resumed), or take --scale small, --minutes, or a GPU."
        )


def _spoken(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes"


def _check_data(todo: Sequence[Job], root: str | Path | None) -> None:
    """Raise for a missing data set before anything is run."""
    from normscope.data.files import data_root, locate

    for name in dict.fromkeys(job.experiment.data for job in todo):
        if name is not None:
            locate(name, data_root(root))
