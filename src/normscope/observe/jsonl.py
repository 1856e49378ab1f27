"""Records as lines of a file, and back: a killed run keeps every finished look."""

import json
import warnings
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from normscope.observe.measurements import MEASUREMENTS
from normscope.observe.record import Record
from normscope.observe.verdict import Verdict
from normscope.results import plain

SCHEMA = 1


class JSONL:
    """A sink: one JSON object a line, first what is watched, then each look; nan and infinities are strings.

    An existing file is continued, also one that a kill cut short. `records_of` reads it back.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def open(self, settings: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._torn = False
        if self.path.exists() and (held := self.path.read_bytes()):
            _check_head(self.path, held.split(b"\n", 1)[0])
            self._torn = not held.endswith(b"\n")
        # Unbuffered: a line that could not be written is not tried again behind our back.
        self._file = self.path.open("ab", buffering=0)
        self._line({"kind": "run", "schema": SCHEMA} | plain(settings))

    def write(self, record: Record) -> None:
        self._line({"kind": "look"} | record.plain())

    def close(self) -> None:
        self._file.close()

    def _line(self, value: dict[str, Any]) -> None:
        line = b"\n" * self._torn + json.dumps(value, allow_nan=False).encode() + b"\n"
        self._torn = True
        while line:
            line = line[self._file.write(line) :]
        self._torn = False


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a `JSONL` file as they are; one that a kill cut short is left out, and said."""
    lines = Path(path).read_bytes().splitlines()
    _check_head(path, lines[0] if lines else b"")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        row = _parsed(line)
        if row is not None:
            rows.append(row)
        elif line:
            warnings.warn(f"{path}: line {number} was cut short and is left out.", stacklevel=2)
    return rows


def records_of(path: str | Path) -> list[Record]:
    """The looks of a `JSONL` file as the Monitor made them, less what measurements of your own found."""
    return [_record(row) for row in read_jsonl(path) if row["kind"] == "look"]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and row.get("kind") in ("run", "look") else None


def _check_head(path: str | Path, line: bytes) -> None:
    head = _parsed(line)
    if head is None or head["kind"] != "run":
        state = "does not begin with its header" if line else "is empty"
        raise ValueError(f"{path} is not a file of a Monitor's JSONL sink: it {state}. Choose another path.")
    if head.get("schema") != SCHEMA:
        raise ValueError(f"{path} has schema {head.get('schema')}; this version of normscope reads {SCHEMA}.")


def _record(row: dict[str, Any]) -> Record:
    return Record(
        step=row["step"],
        seconds=row["seconds"],
        loss=float(row["loss"]),
        results={n: _result(MEASUREMENTS[n]().result, r) for n, r in row["results"].items() if n in MEASUREMENTS},
        verdicts=tuple(Verdict(**verdict) for verdict in row["verdicts"]),
        notes=tuple(row["notes"]),
        errors=row["errors"],
    )


def _result(kind: Any, found: dict[str, Any]) -> Any:
    """`found` with tuples for lists, and numbers for the strings of fields that hold numbers."""
    held = [f for f in fields(kind) if f.name in found or f.default is MISSING]
    return kind(**{f.name: _value(found[f.name], numbers="str" not in str(f.type)) for f in held})


def _value(value: Any, *, numbers: bool) -> Any:
    if isinstance(value, list):
        return tuple(_value(item, numbers=numbers) for item in value)
    return float(value) if numbers and isinstance(value, str) else value
