"""The journal of finished trainings: one SQLite file, which can be read while a sweep writes it.

Each finished cell is a row; the rows of a group are written in one transaction. With write-ahead logging (WAL) and
synchronous=FULL, neither a kill at any instant nor a power cut loses an acknowledged row. Do not use it on a network
file system. While a sweep runs, the `-wal` file beside the journal is part of it; after a clean end there is none. A
writer locks the journal's folder, so a second writer, which would train the same cells, is refused at once.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.messages import brief
from normscope.results import plain
from normscope.results.decoding import decode, parsed
from normscope.sweeping.journal_file import JournalError, check, create, locked, read_only_option
from normscope.sweeping.outcome import CURVES, Outcome, StoredOutcome, read_outcome
from normscope.sweeping.plan import Cell, Plan

_COLUMNS = tuple(StoredOutcome.__annotations__)


@dataclass(frozen=True)
class Started:
    """How often the training of a finished cell was begun: when its row was written, and by now.

    Equal numbers mean that no training was repeated after the row was written.
    """

    at_landing: int
    by_now: int


class Journal:
    """The journal in the file `path`, created if missing; one writer, and any number of readers.

    Args:
        path: the SQLite file.
        readonly: open for reading only; the file must exist.

    Raises:
        JournalError: the file is no journal of this version, is damaged, or another sweep writes it.
    """

    def __init__(self, path: str | os.PathLike[str], *, readonly: bool = False) -> None:
        self.path, self._readonly = Path(path), readonly
        self._lock = None if readonly else locked(self.path)
        try:
            exists = self.path.exists() and self.path.stat().st_size > 0
            if exists:
                check(self.path)
            elif readonly:
                raise JournalError(f"There is no journal {self.path}. Run the sweep that writes it first.")
            with self._explained():
                self._db = self._opened(exists)
        except BaseException:
            self._unlock()
            raise

    def _opened(self, exists: bool) -> sqlite3.Connection:
        if self._readonly:
            # SQLite creates a log to read; in a folder without write access the file is read without one.
            option = "" if os.access(self.path.parent, os.W_OK) else read_only_option(self.path)
            database = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro{option}", uri=True, timeout=30)
        else:
            if not exists:
                create(self.path)
            database = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=rw", uri=True, timeout=30)
            database.execute("pragma journal_mode = wal")
            database.execute("pragma synchronous = full")
        database.isolation_level = None
        return database

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def begin(self, plan: Plan, cells: Sequence[Cell]) -> None:
        """Record that the training of these cells starts now."""
        keys = [(plan.hash, cell.lr, cell.value, cell.seed) for cell in cells]
        with self._transaction() as db:
            db.execute("insert or ignore into plans values (?, ?)", (plan.hash, plan.canonical()))
            db.executemany(
                "insert into starts values (?, ?, ?, ?, 1) on conflict do update set started = started + 1", keys
            )

    def add(self, plan: Plan, outcomes: Iterable[Outcome]) -> None:
        """Write the rows of a finished group, all or none."""
        with self._transaction() as db:
            for outcome in outcomes:
                key = (plan.hash, outcome.cell.lr, outcome.cell.value, outcome.cell.seed)
                (started,) = db.execute(
                    "select started from starts where (plan, lr, value, seed) = (?, ?, ?, ?)", key
                ).fetchone()
                curves = [json.dumps(plain(getattr(outcome, name))) for name in CURVES]
                db.execute(
                    "insert into rows values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *key,
                        started,
                        outcome.initial_loss,
                        outcome.diverged_at,
                        outcome.rose_at,
                        *curves,
                        outcome.mode,
                        outcome.note,
                        json.dumps(outcome.environment, sort_keys=True),
                    ),
                )

    def outcomes(self, plan: Plan) -> dict[Cell, Outcome]:
        """The outcomes of this plan that the journal holds, by cell."""
        with self._explained():
            rows = self._db.execute(
                f"select {', '.join(_COLUMNS)} from rows where plan = ? order by lr, value, seed",
                (plan.hash,),
            ).fetchall()
        named = (dict(zip(_COLUMNS, row, strict=True)) for row in rows)
        outcomes = (self._outcome(plan, number, row) for number, row in enumerate(named))
        return {outcome.cell: outcome for outcome in outcomes}

    def _outcome(self, plan: Plan, number: int, row: dict[str, Any]) -> Outcome:
        """The outcome in a stored row: curves and the environment are JSON, and SQLite stores nan as null."""
        try:
            row |= {name: parsed(row[name] or "") for name in (*CURVES, "environment")}
            if row["initial_loss"] is None:
                row["initial_loss"] = "nan"
            return read_outcome(plan, row, f"row {number}")
        except (ValueError, TypeError) as error:
            raise JournalError(
                f"{self.path} is damaged: {brief(str(error))}. Move it away and run the sweep again."
            ) from error

    def plans(self) -> dict[str, Plan]:
        """The plans in this journal as they ran, by their hashes."""
        with self._explained():
            rows = self._db.execute("select hash, description from plans").fetchall()
        try:
            return {key: Plan.as_it_ran(decode(dict[str, Any], parsed(text)), decode(str, key)) for key, text in rows}
        except (ValueError, TypeError) as error:
            reason = brief(" ".join(str(error).split()))
            raise JournalError(f"{self.path} is damaged, one of its plans cannot be read: {reason}") from error

    def counters(self, plan: Plan) -> dict[Cell, Started]:
        """How often the training of each finished cell was begun."""
        with self._explained():
            rows = self._db.execute(
                "select lr, value, seed, rows.started, starts.started from rows join starts "
                "using (plan, lr, value, seed) where plan = ?",
                (plan.hash,),
            ).fetchall()
        return {Cell(lr, value, seed): Started(then, now) for lr, value, seed, then, now in rows}

    def close(self) -> None:
        """Close the journal; afterwards it is a single file that can be copied."""
        try:
            with self._explained():
                if not self._readonly:
                    self._db.execute("pragma wal_checkpoint(truncate)")
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._db.close()
        self._unlock()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error: object) -> None:
        self._let_go() if error[0] else self.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._explained():
            self._db.execute("begin immediate")
            try:
                yield self._db
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("rollback")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn an error of SQLite into a JournalError with advice."""
        try:
            yield
        except sqlite3.Error as error:
            raise JournalError(f"{self.path}: {error}. {_advice(str(error))}") from error


def _advice(text: str) -> str:
    kept = "Rows written so far are kept"
    if "full" in text or "I/O" in text:
        return f"{kept}: free some disk space and run the same command again."
    if "locked" in text:
        return "Another program holds this journal: wait until it ends, or give another --out."
    if "unable to open" in text or "readonly" in text:
        return f"{kept}: make its folder writable, or give another --out."
    return f"{kept}."
