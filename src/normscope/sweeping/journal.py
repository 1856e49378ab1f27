"""What is done: one SQLite file, readable while a sweep writes it.

A row a finished cell; the rows of a group appear in one transaction. WAL, synchronous=FULL: a kill at any instant loses
nothing that was acknowledged, nor does a power cut. Not for network file systems. After a clean end the file stands
alone; while a sweep runs, its `-wal` file belongs to it. A writer locks the journal's folder until its end: a second
one, which would train the same cells, is refused at once.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.decoding import decode, parsed
from normscope.messages import brief
from normscope.results import plain
from normscope.sweeping.journal_file import JournalError, check, create, locked, still
from normscope.sweeping.outcome import CURVES, Outcome, StoredOutcome, read_outcome
from normscope.sweeping.plan import Cell, Plan

_COLUMNS = tuple(StoredOutcome.__annotations__)


@dataclass(frozen=True)
class Started:
    """A finished cell's counters: trainings begun when its row landed, and begun by now. Equal: none was repeated."""

    at_landing: int
    by_now: int


class Journal:
    """The journal in `path`; made if there is none. One writer, any number of readers (`readonly=True`)."""

    def __init__(self, path: str | os.PathLike[str], *, readonly: bool = False) -> None:
        self.path, self._readonly = Path(path), readonly
        self._lock = None if readonly else locked(self.path)
        try:
            exists = self.path.exists() and self.path.stat().st_size > 0
            if exists:
                check(self.path)
            elif readonly:
                raise JournalError(f"There is no journal {self.path}. Run the sweep that writes it first.")
            with self._said():
                self._db = self._opened(exists)
        except BaseException:
            self._unlock()
            raise

    def _opened(self, exists: bool) -> sqlite3.Connection:
        if self._readonly:
            # Where no log can be laid beside it, and nobody writes, it can be read as it stands.
            alone = "" if os.access(self.path.parent, os.W_OK) else still(self.path)
            found = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro{alone}", uri=True, timeout=30)
        else:
            if not exists:
                create(self.path)
            found = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=rw", uri=True, timeout=30)
            found.execute("pragma journal_mode = wal")
            found.execute("pragma synchronous = full")
        found.isolation_level = None
        return found

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def begin(self, plan: Plan, cells: Sequence[Cell]) -> None:
        """Says that these cells start training now."""
        keys = [(plan.hash, cell.lr, cell.value, cell.seed) for cell in cells]
        with self._transaction() as db:
            db.execute("insert or ignore into plans values (?, ?)", (plan.hash, plan.canonical()))
            db.executemany(
                "insert into starts values (?, ?, ?, ?, 1) on conflict do update set started = started + 1", keys
            )

    def add(self, plan: Plan, outcomes: Iterable[Outcome]) -> None:
        """The rows of a finished group, all or none."""
        with self._transaction() as db:
            for found in outcomes:
                key = (plan.hash, found.cell.lr, found.cell.value, found.cell.seed)
                (started,) = db.execute(
                    "select started from starts where (plan, lr, value, seed) = (?, ?, ?, ?)", key
                ).fetchone()
                curves = [json.dumps(plain(getattr(found, name))) for name in CURVES]
                db.execute(
                    "insert into rows values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *key,
                        started,
                        found.initial_loss,
                        found.diverged_at,
                        found.rose_at,
                        *curves,
                        found.mode,
                        found.note,
                        json.dumps(found.environment, sort_keys=True),
                    ),
                )

    def outcomes(self, plan: Plan) -> dict[Cell, Outcome]:
        """What is done of this plan."""
        with self._said():
            rows = self._db.execute(
                f"select {', '.join(_COLUMNS)} from rows where plan = ? order by lr, value, seed",
                (plan.hash,),
            ).fetchall()
        found = (self._outcome(plan, number, dict(zip(_COLUMNS, row, strict=True))) for number, row in enumerate(rows))
        return {outcome.cell: outcome for outcome in found}

    def _outcome(self, plan: Plan, number: int, row: dict[str, Any]) -> Outcome:
        """A row as it is stored: curves and the environment are JSON, and SQLite keeps nan as null."""
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
        with self._said():
            held = self._db.execute("select hash, description from plans").fetchall()
        try:
            return {key: Plan.as_it_ran(decode(dict[str, Any], parsed(text)), decode(str, key)) for key, text in held}
        except (ValueError, TypeError) as error:
            said = brief(" ".join(str(error).split()))
            raise JournalError(f"{self.path} is damaged, one of its plans cannot be read: {said}") from error

    def counters(self, plan: Plan) -> dict[Cell, Started]:
        """How often the training of each finished cell was begun."""
        with self._said():
            rows = self._db.execute(
                "select lr, value, seed, rows.started, starts.started from rows join starts "
                "using (plan, lr, value, seed) where plan = ?",
                (plan.hash,),
            ).fetchall()
        return {Cell(lr, value, seed): Started(then, now) for lr, value, seed, then, now in rows}

    def close(self) -> None:
        """At a clean end the file stands alone and can be copied."""
        try:
            with self._said():
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
        with self._said():
            self._db.execute("begin immediate")
            try:
                yield self._db
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("rollback")
                raise

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise JournalError(f"{self.path}: {error}. {_advice(str(error))}") from error


def _advice(text: str) -> str:
    kept = "Rows written so far are kept"
    if "full" in text or "I/O" in text:
        return f"{kept}: make room and run the same command again."
    if "locked" in text:
        return "Another program holds this journal: wait for it, or give another --out."
    if "unable to open" in text or "readonly" in text:
        return f"{kept}: let its folder be written, or give another --out."
    return f"{kept}."
