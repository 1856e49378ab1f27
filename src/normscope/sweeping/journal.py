"""What is done: one SQLite file, readable while a sweep writes it.

A row a finished cell; the rows of a group appear in one transaction. WAL, synchronous=FULL: a kill at any instant loses
nothing that was acknowledged, nor does a power cut. Not for network file systems. After a clean end the file stands
alone; while a sweep runs, its `-wal` file belongs to it.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from normscope.results import plain
from normscope.sweeping.outcome import Outcome
from normscope.sweeping.plan import Cell, Plan

SCHEMA = 1
# "nrms", so that another program's database is known for what it is.
_APPLICATION = 0x6E726D73
_CURVES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
_TABLES = """
create table plans (hash text primary key, description text not null) strict;
create table starts (plan text, lr real, value real, seed integer, started integer not null,
    primary key (plan, lr, value, seed)) strict;
create table rows (plan text, lr real, value real, seed integer, started integer not null, initial_loss real,
    diverged_at integer, rose_at integer, train_loss text, train_accuracy text, test_loss text, test_accuracy text,
    mode text, note text, environment text, primary key (plan, lr, value, seed)) strict;
"""


class JournalError(ValueError):
    """A journal that cannot be read or written: what is wrong, and the next step."""


@dataclass(frozen=True)
class Started:
    """A finished cell's counters: trainings begun when its row landed, and begun by now. Equal: none was repeated."""

    at_landing: int
    by_now: int


class Journal:
    """The journal in `path`; made if there is none. One writer, any number of readers (`readonly=True`)."""

    def __init__(self, path: str | os.PathLike[str], *, readonly: bool = False) -> None:
        self.path, self._readonly = Path(path), readonly
        exists = self.path.exists() and self.path.stat().st_size > 0
        if readonly and not exists:
            raise JournalError(f"There is no journal {self.path}. Run the sweep that writes it first.")
        if exists:
            _check(self.path)
        mode = "ro" if readonly else "rwc"
        with self._said():
            if not exists:
                _create(self.path)
            mode = "ro" if readonly else "rw"
            self._db = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode={mode}", uri=True, timeout=30)
            self._db.isolation_level = None
            if not readonly:
                self._db.execute("pragma journal_mode = wal")
                self._db.execute("pragma synchronous = full")

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
                curves = [json.dumps(plain(getattr(found, name))) for name in _CURVES]
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
                "select lr, value, seed, initial_loss, diverged_at, rose_at, train_loss, train_accuracy, test_loss, "
                "test_accuracy, mode, note, environment from rows where plan = ? order by lr, value, seed",
                (plan.hash,),
            ).fetchall()
        found = {}
        for lr, value, seed, initial, diverged, rose, *curves, mode, note, environment in rows:
            cell = Cell(lr, value, seed)
            series = [tuple(float(x) for x in json.loads(curve)) for curve in curves]
            # SQLite keeps nan as null.
            first = float("nan") if initial is None else initial
            described = dict(zip(_CURVES, series, strict=True)) | {"mode": mode, "note": note}
            found[cell] = Outcome(cell, first, diverged, rose, **described, environment=json.loads(environment))
        return found

    def plans(self) -> dict[str, str]:
        """Descriptions of the plans in this journal, by their hashes."""
        with self._said():
            return dict(self._db.execute("select hash, description from plans").fetchall())

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
        with self._said():
            if not self._readonly:
                self._db.execute("pragma wal_checkpoint(truncate)")
            self._db.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error: object) -> None:
        self._db.close() if error[0] else self.close()

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
    if "full" in text:
        return "Rows written so far are kept: make room and run the same command again."
    if "locked" in text:
        return "Another sweep writes this journal: wait for it, or give another --out."
    return "Rows written so far are kept."


def _create(path: Path) -> None:
    """Made beside its place and moved there whole: a kill leaves no half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    made = sqlite3.connect(beside)
    made.executescript(f"pragma application_id = {_APPLICATION}; pragma user_version = {SCHEMA}; {_TABLES}")
    made.close()
    os.replace(beside, path)


def _check(path: Path) -> None:
    """Refuses what is no journal of this version, and leaves it untouched."""
    kept = f"It was left untouched. Give another folder, or move {path.name} away."
    try:
        # Without a log beside it nobody writes, and it can be read without leaving one.
        still = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
        found = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{still}", uri=True)
        try:
            (application,) = found.execute("pragma application_id").fetchone()
            (version,) = found.execute("pragma user_version").fetchone()
            healthy = found.execute("pragma quick_check").fetchone()[0]
        finally:
            found.close()
    except sqlite3.DatabaseError as error:
        raise JournalError(f"{path} is no readable journal ({error}). {kept}") from error
    if application != _APPLICATION:
        raise JournalError(f"{path} is a database of another program. {kept}")
    if version != SCHEMA:
        raise JournalError(f"{path} is a journal of version {version}; this normscope writes version {SCHEMA}. {kept}")
    if healthy != "ok":
        raise JournalError(f"{path} is damaged ({healthy}). {kept}")
