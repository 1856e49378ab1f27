"""Records as lines of a file, and back: a killed run keeps every finished look."""

import json
import math
import os
import warnings
from pathlib import Path
from typing import Any, TypedDict

from normscope.decoding import Count, check_file, decode, parsed
from normscope.messages import brief
from normscope.monitor.probes.registry import PROBES
from normscope.monitor.record import Record
from normscope.results import plain
from normscope.stability.verdict import Verdict

SCHEMA, MOST_HEAD = 1, 1_000_000


class JSONL:
    """A sink: one JSON object a line, first what is watched, then each look; nan and infinities are strings.

    An existing file is continued, also one that a kill cut short. `records_of` reads it back.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def open(self, settings: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._torn = False
        if self.path.exists():
            check_file(self.path, most=math.inf)
            with self.path.open("rb") as held:
                head = held.readline(MOST_HEAD)
                if head:
                    _check_head(self.path, head)
                    held.seek(-1, os.SEEK_END)
                    self._torn = held.read(1) != b"\n"
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
    check_file(path)
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
    looks = [row for row in read_jsonl(path) if row["kind"] == "look"]
    try:
        return [_record(row, number) for number, row in enumerate(looks, 1)]
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: {brief(str(error))}. Remove that line, or make the file anew with this version."
        ) from error


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = parsed(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and row.get("kind") in ("run", "look") else None


def _check_head(path: str | Path, line: bytes) -> None:
    head = _parsed(line)
    if head is None or head["kind"] != "run":
        state = "does not begin with its header" if line else "is empty"
        raise ValueError(f"{path} is not a file of a Monitor's JSONL sink: it {state}. Choose another path.")
    if head.get("schema") != SCHEMA:
        raise ValueError(
            f"{path} has schema {brief(repr(head.get('schema')))}; this version of normscope reads {SCHEMA}."
        )


class _Look(TypedDict):
    """A look as it is stored; its results are decoded one by one."""

    step: Count
    seconds: float
    loss: float
    results: dict[str, dict[str, Any]]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]
    errors: dict[str, str]


def _record(row: dict[str, Any], number: int) -> Record:
    held = decode(_Look, row, f"look {number}")
    results = {
        name: decode(PROBES[name]().result, result, f"look {number}.results.{name}")
        for name, result in held["results"].items()
        if name in PROBES
    }
    return Record(**{name: held[name] for name in _Look.__annotations__} | {"results": results})
