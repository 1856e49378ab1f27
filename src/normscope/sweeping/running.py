"""`sweep` trains the cells of a plan that the journal does not hold yet, and returns the phase diagram of all."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from normscope.importing.extras import need
from normscope.messages.choices import check_choice
from normscope.results.environment import known_device
from normscope.results.saving import check_folder
from normscope.sweeping.boundary import refinement
from normscope.sweeping.diagram import PhaseDiagram, diagram
from normscope.sweeping.engines import Engine, Local
from normscope.sweeping.journal import Journal
from normscope.sweeping.outcome import Outcome
from normscope.sweeping.plan import Cell, Plan
from normscope.sweeping.progress import Bar

JOURNAL = "sweep.sqlite"


def sweep(
    plan: Plan | Mapping[str, Any] | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    device: str | None = None,
    engine: str = "local",
    address: str | None = None,
    root: str | os.PathLike[str] | None = None,
    group: int | None = None,
    quiet: bool = False,
) -> PhaseDiagram:
    """Train the plan's grid, except the cells that the journal in `out` already holds; returns the phase diagram.

    The sweep can be stopped at any moment and called again. Plans that differ in anything have separate results in the
    same journal.

    Args:
        plan: a `Plan`, its keys, or the path of a TOML file.
        out: the folder of the journal; created if missing.
        device: "cpu" or "cuda"; by default the GPU if there is one.
        engine: "local", or "ray" to train groups as tasks of a Ray cluster.
        address: address of a Ray cluster to join; without it, Ray starts on this machine.
        root: the data folder, for data sets with files.
        group: number of members trained at once; by default as many as free memory allows.
        quiet: print one plain line for each group instead of the progress bar.

    Returns:
        The phase diagram of all cells.

    Raises:
        PlanError: with all mistakes of the plan.
        JournalError: the journal cannot be read or written.

    Example:
        >>> import tempfile
        >>> plan = Plan("MLP", "digits", learning_rates=(0.01, 30.0), momentum=0.9, epochs=1, data_options={"seed": 0},
        ...             arguments={"d_in": 64, "width": 16, "norm": "batch"})
        >>> diagram = sweep(plan, tempfile.mkdtemp(), device="cpu", quiet=True)
        >>> diagram.boundary()[0].survives, diagram.boundary()[0].diverges
        (0.01, 30.0)
    """
    plan = _plan(plan)
    device = check_call(out, device=device, engine=engine, address=address, group=group)
    path, cells = Path(out) / JOURNAL, plan.cells()
    done = _done(path, plan)
    if not plan.bisect and set(done).issuperset(cells):
        return diagram(plan, done.values())
    with (
        closing(_engine(engine, plan, device, root, address)) as chosen,
        Journal(path) as journal,
        Bar(len(cells), len(set(done).intersection(cells)), quiet=quiet) as bar,
    ):
        _train(plan, journal, chosen, cells, group, bar)
        while plan.bisect:
            known = journal.outcomes(plan)
            cells = refinement(plan, known.values())
            if not cells:
                break
            bar.more(len(set(cells).difference(known)))
            _train(plan, journal, chosen, cells, group, bar)
        return diagram(plan, journal.outcomes(plan).values())


def check_call(
    out: str | os.PathLike[str],
    *,
    device: str | None = None,
    engine: str = "local",
    address: str | None = None,
    group: int | None = None,
) -> str:
    """Check the arguments of `sweep` before anything is computed or written; returns the device."""
    check_choice("engine", engine, ("local", "ray"))
    if address is not None and engine != "ray":
        raise ValueError(f"address= names a Ray cluster; got engine={engine!r}. Add engine='ray'.")
    if group is not None and group < 1:
        raise ValueError(f"group counts members, from 1 on; got {group}.")
    if engine == "ray":
        need("ray", "ray")
    check_folder(out, "out")
    # The workers of a cluster may have a device that this machine lacks.
    return known_device(device) if engine == "local" or device is None else device


def _done(path: Path, plan: Plan) -> dict[Cell, Outcome]:
    if not path.exists() or not path.stat().st_size:
        return {}
    with Journal(path, readonly=True) as journal:
        return journal.outcomes(plan)


def _plan(plan: Plan | Mapping[str, Any] | str | os.PathLike[str]) -> Plan:
    if isinstance(plan, Plan):
        # A copy, so that the hash is made now, from the factory's file as it is when the sweep starts.
        return replace(plan)
    return Plan.from_dict(plan) if isinstance(plan, Mapping) else Plan.from_toml(Path(plan))


def _engine(name: str, plan: Plan, device: str, root: str | os.PathLike[str] | None, address: str | None) -> Engine:
    if name == "local":
        return Local(plan, device=device, root=root)
    from normscope.sweeping.cluster import Ray

    return Ray(plan, device=device, root=root, address=address)


def _train(plan: Plan, journal: Journal, engine: Engine, cells: Sequence[Cell], group: int | None, bar: Bar) -> None:
    """Train the cells that are not done. Groups are cut from all cells, so that a resumed sweep has the same groups."""
    done = set(journal.outcomes(plan))
    size = group or engine.group_size(len(cells))
    whole = [cells[start : start + size] for start in range(0, len(cells), size)]
    left = [[cell for cell in members if cell not in done] for members in whole]
    groups = [members for members in left if members]
    for outcomes in engine.run(groups, size, lambda members: journal.begin(plan, members), bar.advance):
        journal.add(plan, outcomes)
        bar.landed(len(outcomes))
