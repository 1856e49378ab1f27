"""Lock, create and check the journal's file, before anything is read from it or written to it."""

import os
import sqlite3
import sys
from pathlib import Path

SCHEMA = 1
# SQLite's application id, "nrms": it tells a journal from another program's database.
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
    """A journal cannot be read or written; the message gives the reason and the next step."""


def locked(path: Path) -> int | None:
    """Lock the journal's folder; the lock ends with the process and leaves no file.

    Returns:
        The file descriptor of the lock; None on Windows.

    Raises:
        JournalError: another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":  # Windows cannot lock folders; SQLite's own lock keeps rows whole.
        return None
    import fcntl

    lock = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise JournalError(
            f"Another sweep writes {path}. Wait until it ends and run the same command again, or give another --out."
        ) from error
    return lock


def create(path: Path) -> None:
    """Create an empty journal under a temporary name and rename it, so that a kill never leaves half a file."""
    temporary = path.with_name(f".{path.name}.new")
    # A killed process may have left the temporary file; the folder is locked, so no other process is using it.
    temporary.unlink(missing_ok=True)
    database = sqlite3.connect(temporary)
    database.executescript(f"pragma application_id = {_APPLICATION}; pragma user_version = {SCHEMA}; {_TABLES}")
    database.close()
    os.replace(temporary, path)


def read_only_option(path: Path) -> str:
    """The option for SQLite's URI that reads a journal without creating a log beside it.

    "" if there is a write-ahead log, since a process may then be writing.
    """
    return "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"


def check(path: Path) -> None:
    """Raise a JournalError, and leave the file untouched, if it is not a sound journal of this version."""
    if not path.is_file():
        raise JournalError(f"{path} must be a file, and is not. Give another folder.")
    advice = f"It was left untouched. Give another folder, or move {path.name} away."
    try:
        database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro{read_only_option(path)}", uri=True)
        try:
            (application,) = database.execute("pragma application_id").fetchone()
            (version,) = database.execute("pragma user_version").fetchone()
            health = database.execute("pragma quick_check").fetchone()[0]
        finally:
            database.close()
    except sqlite3.DatabaseError as error:
        raise JournalError(f"{path} is not a readable journal ({error}). {advice}") from error
    if application != _APPLICATION:
        raise JournalError(f"{path} is a database of another program. {advice}")
    if version != SCHEMA:
        raise JournalError(
            f"{path} is a journal of version {version}; this normscope writes version {SCHEMA}. {advice}"
        )
    if health != "ok":
        raise JournalError(f"{path} is damaged ({health}). {advice}")
