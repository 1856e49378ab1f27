"""Finished runs on disk: one file for each experiment, with plans by their hash and runs by plan and seed.

A run is written the moment it is finished. The new file is written beside the old one and moved over it, so that a
kill leaves either the old file or the new one. A changed plan has another hash; runs of the old plan stay in the file.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

from normscope.messages import brief, first_line
from normscope.papers.experiment import NAMES_OF_SCHEMA_1, Experiment, Run, compact, numbers
from normscope.results.decoding import Count, decode, read_json
from normscope.results.saving import save_text

SCHEMA = 2


class StoreError(ValueError):
    """Stored runs that cannot be read; the message names the file and the next step."""


class StoredRun(TypedDict):
    plan: str
    seed: Count
    seconds: float
    made: dict[str, Any]
    curves: dict[str, Any]


class Content(TypedDict):
    """A file of the store."""

    schema: int
    experiment: str
    what: str
    plans: dict[str, dict[str, Any]]
    runs: list[StoredRun]


class Store:
    """The folder of results; `folder` need not exist before the first run."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._read: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}
        self._earlier: dict[str, list[Run]] = {}

    def path(self, experiment: Experiment) -> Path:
        """The experiment's file; the file of schema 1 where only that is there."""
        now, before = (self.folder / f"{name}.json" for name in (experiment.name, experiment.name_of_schema_1))
        return before if before.is_file() and not now.is_file() else now

    def runs(self, experiment: Experiment, cell: str, scale: str) -> list[Run]:
        """The stored runs of exactly this plan, one for each seed, in the order of seeds."""
        by_seed = {}
        if scale == "paper":
            if experiment.name not in self._earlier:
                self._earlier[experiment.name] = self._from_earlier(experiment)
            by_seed = {run.seed: run for run in self._earlier[experiment.name] if run.cell == cell}
        wanted = experiment.hash(cell, scale)
        for row in self._content(experiment)["runs"]:
            if row["plan"] == wanted:
                by_seed[row["seed"]] = Run(cell, row["seed"], numbers(row["curves"]), row["seconds"], row["made"])
        return [by_seed[seed] for seed in sorted(by_seed)]

    def _from_earlier(self, experiment: Experiment) -> list[Run]:
        try:
            return experiment.earlier(self.folder.parent)
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            raise StoreError(
                f"The results in {self.folder.parent} that {experiment.name} reads are damaged ({first_line(error)}). "
                "Make them anew, or move them away."
            ) from error

    def add(self, experiment: Experiment, scale: str, run: Run) -> None:
        """Add a run under a lock, so that two processes can add runs at the same time without losing any."""
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
        save_text(self.folder / f"{experiment.name}.json", _lines(content))

    def _content(self, experiment: Experiment) -> dict[str, Any]:
        path = self.path(experiment)
        if not path.is_file():
            return {"schema": SCHEMA, "experiment": experiment.name, "what": experiment.what, "plans": {}, "runs": []}
        # Read the file again only when it has changed.
        stat = path.stat()
        version = (stat.st_mtime_ns, stat.st_size)
        if path in self._read and self._read[path][0] == version:
            return self._read[path][1]
        try:
            content: dict[str, Any] = decode(Content, read_json(path))
        except ValueError as error:
            said = f"{path} is damaged or no JSON of normscope's ({brief(str(error))})."
            raise StoreError(f"{said} Move it away; what it held has to be run again.") from error
        name = experiment.name_of_schema_1 if content["schema"] == 1 else experiment.name
        if content["schema"] not in (1, SCHEMA) or content["experiment"] != name:
            raise StoreError(f"{path} must hold runs of {experiment.name}, schema {SCHEMA}. Move it away, or fix it.")
        if content["schema"] == 1:
            content = content | _renamed(experiment, content)
        self._read[path] = (version, content)
        return content


def _renamed(experiment: Experiment, content: dict[str, Any]) -> dict[str, Any]:
    """Plans and runs of schema 1 with the names of today."""
    now = {before: name for name, before in NAMES_OF_SCHEMA_1.items()}

    def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
        return {now.get(name, name): value for name, value in values.items()}

    return {
        "schema": SCHEMA,
        "experiment": experiment.name,
        "plans": {key: renamed(plan) | {"experiment": experiment.name} for key, plan in content["plans"].items()},
        "runs": [run | {"curves": renamed(run["curves"])} for run in content["runs"]],
    }


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
    """The file's text with one line for each plan and each run, so that a new seed is one line of a diff."""

    def text(value: Any) -> str:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))

    plans = ",\n".join(f"{text(name)}:{text(plan)}" for name, plan in content["plans"].items())
    runs = ",\n".join(text(run) for run in content["runs"])
    head = ",\n".join(f"{text(key)}:{text(content[key])}" for key in ("schema", "experiment", "what"))
    return f'{{{head},\n"plans":{{\n{plans}\n}},\n"runs":[\n{runs}\n]}}\n'
