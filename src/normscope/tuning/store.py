"""The store of finished rehearsals: one JSON line each, so that a tuning that was killed goes on where it stopped.

A line is found by its key: a hash of the network, the batches and all settings, with the rate and the number of steps.
A line cut short by a kill is skipped, and the next one begins on a line of its own.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path

from normscope.results import plain
from normscope.results.decoding import Misfit, decode, parsed
from normscope.tuning.rehearsal import Rehearsal

SCHEMA = 1


class Store:
    """The rehearsals in the file `path` that belong to one stage.

    Args:
        path: a JSONL file, created by the first rehearsal; None keeps nothing.
        key: the hash of the stage.

    Raises:
        ValueError: the file is a folder, or its folder is missing.
    """

    def __init__(self, path: str | os.PathLike[str] | None, key: str) -> None:
        self._path, self._key = None if path is None else Path(path), key
        self._found: dict[str, Rehearsal] = {}
        if self._path is None:
            return
        if self._path.is_dir() or not self._path.parent.is_dir():
            what = "is a folder" if self._path.is_dir() else "lies in a folder that does not exist"
            raise ValueError(f"store= names a file for finished rehearsals, and {self._path} {what}.")
        if self._path.exists():
            for line in self._path.read_bytes().splitlines():
                self._read(line)

    def _read(self, line: bytes) -> None:
        try:
            held = parsed(line)
            if held["kind"] == "rehearsal" and held["schema"] == SCHEMA:
                self._found[held["key"]] = decode(Rehearsal, held["rehearsal"])
        except (ValueError, KeyError, TypeError, Misfit):
            return  # cut short by a kill, or of another program

    def get(self, lr: float, steps: int) -> Rehearsal | None:
        """The stored rehearsal at this rate and length; None where there is none."""
        return self._found.get(self._name(lr, steps))

    def add(self, rehearsal: Rehearsal) -> None:
        """Write a finished rehearsal to disk."""
        if self._path is None:
            return
        name = self._name(rehearsal.lr, rehearsal.steps)
        self._found[name] = rehearsal
        line = {"kind": "rehearsal", "schema": SCHEMA, "key": name, "rehearsal": plain(asdict(rehearsal))}
        with self._path.open("ab") as file:
            torn = file.tell() and not self._path.read_bytes().endswith(b"\n")
            file.write(b"\n" * bool(torn) + json.dumps(line, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _name(self, lr: float, steps: int) -> str:
        return f"{self._key}-{lr!r}-{steps}"
