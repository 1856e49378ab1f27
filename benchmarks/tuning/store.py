"""The store of runs: one line of JSON for each finished run, in one file that is only ever appended to."""

import json
from pathlib import Path
from typing import Any


class Store:
    """The runs in FOLDER/NAME.jsonl by their key; a line cut short by a kill is skipped and its run made again."""

    def __init__(self, folder: Path, name: str = "runs") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"{name}.jsonl"
        self.records: dict[str, dict[str, Any]] = {}
        if self.file.exists():
            text = self.file.read_text()
            for line in text.splitlines():
                self._read(line)
            if text and not text.endswith("\n"):
                with self.file.open("a") as out:
                    out.write("\n")

    def _read(self, line: str) -> None:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            return
        self.records[record["key"]] = record

    def __contains__(self, key: str) -> bool:
        return key in self.records

    def add(self, record: dict[str, Any]) -> None:
        """Keep a record, which has a "key"."""
        self.records[record["key"]] = record
        with self.file.open("a") as out:
            out.write(json.dumps(record, separators=(",", ":")) + "\n")
