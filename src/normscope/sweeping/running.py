"""`sweep`: train what is not done yet, and give the phase diagram of all that is."""

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from normscope.choices import check_choice
from normscope.environment import known_device
from normscope.extras import need
from normscope.saving import check_folder
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
    """Trains the plan's grid to completion; what the journal in `out` already holds is not trained again.

    Stop it at any moment and call it again. A plan that differs in anything has results of its own in the same journal.

    Args:
        plan: a `Plan`, its keys, or the path of a TOML file.
        out: the folder of the journal; made if there is none.
        device: cpu or cuda; the GPU where there is one.
        engine: "local", or "ray" for the groups to become tasks of a Ray cluster.
        address: of a Ray cluster to join; without one, Ray starts here.
        root: the data folder, for data sets that have files.
        group: members trained at once; found from free memory by default.
        quiet: a plain line a group instead of the bar.

    Example:
        >>> import tempfile
        >>> plan = Plan("MLP", "digits", learning_rates=(0.01, 30.0), momentum=0.9, epochs=1, data_options={"seed": 0},
        ...             arguments={"d_in": 64, "width": 16, "norm": "batch"})
        >>> found = sweep(plan, tempfile.mkdtemp(), device="cpu", quiet=True)
        >>> found.boundary()[0].survives, found.boundary()[0].diverges
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
    """Says what is wrong with the arguments of `sweep` before anything is computed or written; returns the device."""
    check_choice("engine", engine, ("local", "ray"))
    if address is not None and engine != "ray":
        raise ValueError(f"address= names a Ray cluster; got engine={engine!r}. Add engine='ray'.")
    if group is not None and group < 1:
        raise ValueError(f"group counts members, from 1 on; got {group}.")
    if engine == "ray":
        need("ray", "ray")
    check_folder(out, "out")
    # A cluster's workers may have a device that this machine has not.
    return known_device(device) if engine == "local" or device is None else device


def _done(path: Path, plan: Plan) -> dict[Cell, Outcome]:
    if not path.exists() or not path.stat().st_size:
        return {}
    with Journal(path, readonly=True) as journal:
        return journal.outcomes(plan)


def _plan(plan: Plan | Mapping[str, Any] | str | os.PathLike[str]) -> Plan:
    if isinstance(plan, Plan):
        # A copy, whose hash is made now: of the factory's file as it is when the sweep starts.
        return replace(plan)
    return Plan.from_dict(plan) if isinstance(plan, Mapping) else Plan.from_toml(Path(plan))


def _engine(name: str, plan: Plan, device: str, root: str | os.PathLike[str] | None, address: str | None) -> Engine:
    if name == "local":
        return Local(plan, device=device, root=root)
    from normscope.sweeping.cluster import Ray

    return Ray(plan, device=device, root=root, address=address)


def _train(plan: Plan, journal: Journal, engine: Engine, cells: Sequence[Cell], group: int | None, bar: Bar) -> None:
    """The cells that are not done; groups are cut from all of them, so that a resumed sweep has the same ones."""
    done = set(journal.outcomes(plan))
    size = group or engine.group_size(len(cells))
    whole = [cells[start : start + size] for start in range(0, len(cells), size)]
    groups = [[cell for cell in some if cell not in done] for some in whole]
    for outcomes in engine.run(
        [some for some in groups if some], size, lambda some: journal.begin(plan, some), bar.advance
    ):
        journal.add(plan, outcomes)
        bar.landed(len(outcomes))
