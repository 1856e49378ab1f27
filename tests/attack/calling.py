"""One command line in this process: what it ended with, and whether it did what it never may."""

import contextlib
import io
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LIMIT, MOST_SAID, MEMORY = 60.0, 4200, 8 * 2**30
EVIL = """
import pathlib
pathlib.Path({mark!r}).touch()
def build(*args, **kwargs):
    raise SystemExit(0)
"""


class Hang(BaseException):
    """The call did not end within the limit."""


class Arena:
    """A folder to be in, with a module that leaves a mark when it is imported; counts what calls ended with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, folder / "imported"
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.slowest = (0.0, "")
        (folder / "evilmod.py").write_text(EVIL.format(mark=str(self.mark)))

    def call(self, *arguments: str, may_import: bool = False) -> str:
        """Runs the verb; one of ok, refused, traceback, hang, import, echo."""
        started = time.monotonic()
        out, said = io.StringIO(), io.StringIO()
        try:
            status: object = _status(arguments, out, said)
            found = {0: "ok", 1: "ok", 2: "refused"}.get(status, "status") if isinstance(status, int) else "status"
        except BaseException as error:
            found = "hang" if isinstance(error, Hang) else "traceback"
            said.write(traceback.format_exc())
        seconds = time.monotonic() - started
        self.slowest = max(self.slowest, (seconds, " ".join(arguments)[:200]))
        text = said.getvalue()
        if found in ("ok", "refused") and "Traceback (most recent call last)" in text:
            found = "traceback"
        if found == "refused" and len(text) > MOST_SAID:
            found = "echo"
        if self.mark.exists():
            self.mark.unlink()
            sys.modules.pop("evilmod", None)
            found = found if may_import else "import"
        self.counts[found] += 1
        if found not in ("ok", "refused"):
            self.failures.append(f"{found}: {' '.join(arguments)[:300]}\n{text[-3000:]}")
        return found


def summary(what: str, found: Counter[str], slowest: tuple[float, str], seconds: float) -> str:
    """All counts in one line, with the slowest call."""
    counts = ", ".join(f"{found[name]} {name}" for name in ("ok", "refused"))
    wrong = ", ".join(
        f"{found[name]} {words}"
        for name, words in (
            ("traceback", "tracebacks"),
            ("import", "imports by reading"),
            ("hang", f"hangs above {LIMIT:g} s"),
            ("echo", "long messages"),
            ("status", "other statuses"),
        )
    )
    slow = f"slowest {slowest[0]:.1f} s ({slowest[1]})"
    return f"{sum(found.values())} {what}: {counts}; {wrong}; {slow}; {seconds:.0f} s in all"


def _status(arguments: tuple[str, ...], out: io.StringIO, said: io.StringIO) -> object:
    from normscope.cli import main

    before = sys.argv, list(sys.path)
    sys.argv = ["normscope", *arguments]
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            warnings.simplefilter("ignore")
            main()
    except SystemExit as ended:
        return ended.code or 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.argv, sys.path[:] = before
    return 0


@contextlib.contextmanager
def arena(folder: Path) -> Iterator[Arena]:
    """In `folder`, with bounds on memory and time, and everything as it was afterwards."""

    def hang(number: int, frame: object) -> None:
        raise Hang

    folder.mkdir(parents=True, exist_ok=True)
    here, handler, limits = Path.cwd(), signal.signal(signal.SIGALRM, hang), resource.getrlimit(resource.RLIMIT_AS)
    # A shell starts a background job with SIGINT ignored; a page that is served ends with SIGINT.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_AS, (_used() + MEMORY, limits[1]))
    try:
        yield Arena(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, handler)
        signal.signal(signal.SIGINT, interrupt)
        os.chdir(here)


def _used() -> int:
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 0
