"""Finished runs on disk: a file an experiment, plans by their hash, seeds that add up.

A run is written the moment it is finished: the file is made anew beside its place and moved there, so that a kill
leaves the old one or the new one. A changed plan has another hash, and its runs lie beside the old.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from normscope.reproduction.experiment import Experiment, Run, compact, numbers

SCHEMA = 1


class Store:
    """The folder of results; `folder` need not exist before the first run."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._read: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}
        self._earlier: dict[str, list[Run]] = {}

    def path(self, experiment: Experiment) -> Path:
        return self.folder / f"{experiment.name}.json"

    def runs(self, experiment: Experiment, cell: str, scale: str) -> list[Run]:
        """Those of this very plan, one a seed, in the order of seeds."""
        found = {}
        if scale == "paper":
            if experiment.name not in self._earlier:
                self._earlier[experiment.name] = experiment.earlier(self.folder.parent)
            found = {run.seed: run for run in self._earlier[experiment.name] if run.cell == cell}
        wanted = experiment.hash(cell, scale)
        for row in self._content(experiment)["runs"]:
            if row["plan"] == wanted:
                found[row["seed"]] = Run(cell, row["seed"], numbers(row["curves"]), row["seconds"], row["made"])
        return [found[seed] for seed in sorted(found)]

    def add(self, experiment: Experiment, scale: str, run: Run) -> None:
        """Read, added to and put back as one: of two processes that add, neither loses what the other has."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with _alone(self.folder):
            self._add(experiment, scale, run)

    def _add(self, experiment: Experiment, scale: str, run: Run) -> None:
        content = dict(self._content(experiment))
        name = experiment.hash(run.cell, scale)
        content["plans"] = content["plans"] | {name: compact(experiment.plan(run.cell, scale))}
        row = {"plan": name, "seed": run.seed, "seconds": round(run.seconds, 1), "made": run.made}
        kept = [old for old in content["runs"] if (old["plan"], old["seed"]) != (name, run.seed)]
        content["runs"] = [*kept, row | {"curves": compact(run.curves)}]
        path = self.path(experiment)
        # One that a kill has left is written over.
        beside = path.with_suffix(".new")
        beside.write_text(_lines(content), encoding="utf-8")
        beside.replace(path)

    def _content(self, experiment: Experiment) -> dict[str, Any]:
        path = self.path(experiment)
        if not path.is_file():
            return {"schema": SCHEMA, "experiment": experiment.name, "what": experiment.what, "plans": {}, "runs": []}
        # Read again only when somebody has written.
        stat = path.stat()
        version = (stat.st_mtime_ns, stat.st_size)
        if path in self._read and self._read[path][0] == version:
            return self._read[path][1]
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is no JSON ({error}). Move it away; what it held has to be run again.") from error
        if content.get("schema") != SCHEMA or content.get("experiment") != experiment.name:
            raise ValueError(f"{path} must hold runs of {experiment.name}, schema {SCHEMA}. Move it away, or fix it.")
        self._read[path] = (version, content)
        return content


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until no other process writes into the folder. The lock ends with its process and leaves no file."""
    if sys.platform == "win32":  # Folders cannot be locked there.
        yield
        return
    import fcntl

    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _lines(content: dict[str, Any]) -> str:
    """A line a plan and a line a run: small, and a new seed is one line of a diff."""

    def text(value: Any) -> str:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))

    plans = ",\n".join(f"{text(name)}:{text(plan)}" for name, plan in content["plans"].items())
    runs = ",\n".join(text(run) for run in content["runs"])
    head = ",\n".join(f"{text(key)}:{text(content[key])}" for key in ("schema", "experiment", "what"))
    return f'{{{head},\n"plans":{{\n{plans}\n}},\n"runs":[\n{runs}\n]}}\n'
