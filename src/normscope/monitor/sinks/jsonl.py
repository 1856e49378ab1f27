"""Records as lines of a file, and back: a killed run keeps every finished snapshot."""

import json
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from normscope.messages import brief
from normscope.monitor.probes.registry import PROBES
from normscope.monitor.record import Record, StoredResult
from normscope.results import plain
from normscope.results.decoding import Count, check_file, decode, parsed
from normscope.stability.verdict import Verdict

SCHEMA, MOST_HEAD = 2, 1_000_000
# Schema 1 has another word for the kind of a snapshot's line, and for errors of the whole snapshot.
_SNAPSHOT_OF_SCHEMA_1 = "look"


class JSONL:
    """A sink that writes one JSON object per line: first the Monitor's settings, then each record.

    nan and infinities are strings. An existing file is continued, also one that a kill cut short. `records_of` reads
    the file back.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def open(self, settings: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._torn = False
        if self.path.exists():
            check_file(self.path, most=math.inf)
            with self.path.open("rb") as opened:
                head = opened.readline(MOST_HEAD)
                if head:
                    _check_head(self.path, head)
                    opened.seek(-1, os.SEEK_END)
                    self._torn = opened.read(1) != b"\n"
        # Unbuffered, so that Python does not write a failed line again later.
        self._file = self.path.open("ab", buffering=0)
        self._line({"kind": "run", "schema": SCHEMA} | plain(settings))

    def write(self, record: Record) -> None:
        self._line({"kind": "snapshot"} | record.plain())

    def close(self) -> None:
        self._file.close()

    def _line(self, value: dict[str, Any]) -> None:
        line = b"\n" * self._torn + json.dumps(value, allow_nan=False).encode() + b"\n"
        self._torn = True
        while line:
            line = line[self._file.write(line) :]
        self._torn = False


@dataclass(frozen=True)
class StoredRun:
    """The contents of a `JSONL` file.

    Args:
        headers: the settings of the Monitor, once for each time that the file was opened.
        records: the snapshots.
        notes: one sentence for each line that was left out because a kill had cut it short.
    """

    headers: tuple[dict[str, Any], ...]
    records: tuple[Record, ...]
    notes: tuple[str, ...]


def stored_run(path: str | Path) -> StoredRun:
    """Reads a `JSONL` file once."""
    rows, notes = _rows(path)
    headers = tuple(row for row in rows if row["kind"] == "run")
    return StoredRun(headers, tuple(_records(rows, path)), tuple(notes))


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a `JSONL` file as dictionaries. A line that a kill cut short is left out, with a warning.

    Args:
        path: a file that a `JSONL` sink wrote.

    Returns:
        One dictionary for each line: the run first, then the snapshots.
    """
    rows, notes = _rows(path)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return rows


def records_of(path: str | Path) -> list[Record]:
    """The records of a `JSONL` file as the Monitor made them; results of the user's own probes as `StoredResult`.

    Args:
        path: a file that a `JSONL` sink wrote.

    Returns:
        The records, by step.
    """
    rows, notes = _rows(path)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return _records(rows, path)


def _rows(path: str | Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The lines as dictionaries, and a note on each line that is left out."""
    check_file(path)
    lines = Path(path).read_bytes().splitlines()
    _check_head(path, lines[0] if lines else b"")
    rows, notes = [], []
    for number, line in enumerate(lines, 1):
        row = _parsed(line)
        if row is not None:
            rows.append(row)
        elif line:
            notes.append(f"{path}: line {number} was cut short and is left out.")
    return rows, notes


def _records(rows: Sequence[dict[str, Any]], path: str | Path) -> list[Record]:
    snapshots = [row for row in rows if row["kind"] == "snapshot"]
    try:
        return [_record(row, number) for number, row in enumerate(snapshots, 1)]
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: {brief(str(error))}. Remove that line, or write the file again with this version."
        ) from error


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = parsed(line)
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    if row.get("kind") == _SNAPSHOT_OF_SCHEMA_1:
        row["kind"] = "snapshot"
        if _SNAPSHOT_OF_SCHEMA_1 in row.get("errors", {}):
            row["errors"]["snapshot"] = row["errors"].pop(_SNAPSHOT_OF_SCHEMA_1)
    return row if row.get("kind") in ("run", "snapshot") else None


def _check_head(path: str | Path, line: bytes) -> None:
    head = _parsed(line)
    if head is None or head["kind"] != "run":
        state = "does not begin with its header" if line else "is empty"
        raise ValueError(f"{path} is not a file of a Monitor's JSONL sink: it {state}. Choose another path.")
    if head.get("schema") not in range(1, SCHEMA + 1):
        raise ValueError(
            f"{path} has schema {brief(repr(head.get('schema')))}; this version of normscope reads 1 to {SCHEMA}."
        )


class _StoredSnapshot(TypedDict):
    """A record as it is stored; its results are decoded one by one."""

    step: Count
    seconds: float
    loss: float
    results: dict[str, dict[str, Any]]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]
    errors: dict[str, str]


def _record(row: dict[str, Any], number: int) -> Record:
    stored = decode(_StoredSnapshot, row, f"snapshot {number}")
    results = {
        name: _result(name, result, f"snapshot {number}.results.{name}") for name, result in stored["results"].items()
    }
    return Record(**{name: stored[name] for name in _StoredSnapshot.__annotations__} | {"results": results})


def _result(name: str, stored: dict[str, Any], where: str) -> Any:
    return decode(PROBES[name].result_class(), stored, where) if name in PROBES else StoredResult(stored, probe=name)
