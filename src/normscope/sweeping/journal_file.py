"""The journal's file: locked, made, and checked for what it is, before anything of it is read or written."""

import os
import sqlite3
import sys
from pathlib import Path

SCHEMA = 1
# "nrms", so that another program's database is known for what it is.
_APPLICATION = 0x6E726D73
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


def locked(path: Path) -> int | None:
    """A lock on the journal's folder, which ends with the process that holds it; no file is left by it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":  # Folders cannot be locked there; SQLite's own lock keeps rows whole.
        return None
    import fcntl

    lock = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise JournalError(
            f"Another sweep writes {path}. Wait for its end and run the same command again, or give another --out."
        ) from error
    return lock


def create(path: Path) -> None:
    """Made beside its place and moved there whole: a kill leaves no half of one."""
    beside = path.with_name(f".{path.name}.new")
    # What a kill has left; nobody else makes one, the folder is locked.
    beside.unlink(missing_ok=True)
    made = sqlite3.connect(beside)
    made.executescript(f"pragma application_id = {_APPLICATION}; pragma user_version = {SCHEMA}; {_TABLES}")
    made.close()
    os.replace(beside, path)


def still(path: Path) -> str:
    """Without a log beside it nobody writes, and it can be read without leaving one."""
    return "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"


def check(path: Path) -> None:
    """Refuses what is no journal of this version, and leaves it untouched."""
    if not path.is_file():
        raise JournalError(f"{path} must be a file, and is none. Give another folder.")
    kept = f"It was left untouched. Give another folder, or move {path.name} away."
    try:
        found = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{still(path)}", uri=True)
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
