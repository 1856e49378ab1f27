"""Files written whole: beside their place first, then moved there.

A kill, a full disk or an error leaves the old file or none, never half of a new one.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def beside(path: str | Path) -> Iterator[Path]:
    """A new path in the same folder, with the same suffix; the file written there takes `path`'s place at the end.

    Where the block raises, the new file is removed and `path` is as it was. A link keeps pointing to its file.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp(), "a.txt")
        >>> with beside(place) as new:
        ...     _ = new.write_text("whole")
        >>> place.read_text()
        'whole'
    """
    try:
        place = Path(path).resolve()
    except RuntimeError as error:
        raise ValueError(f"{path} is a link that leads to itself. Name another file.") from error
    if place.exists() and not place.is_file():
        what = "is a folder" if place.is_dir() else "is a device, a pipe or a socket"
        raise ValueError(f"{path} {what} and cannot be replaced by a file. Name another file.")
    start, ending = f".{place.stem[:60]}-", f".new{place.suffix[:16]}"
    _forget(place.parent, f"{escape(start)}????????{escape(ending)}")
    new = place.with_name(f"{start}{uuid4().hex[:8]}{ending}")
    try:
        yield new
        # A disk that is full may say so only here.
        with new.open("rb") as written:
            os.fsync(written.fileno())
        if place.exists():
            shutil.copymode(place, new)
        os.replace(new, place)
    except BaseException as error:
        new.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(new):
            raise type(error)(error.errno, error.strerror, str(path)) from error
        raise


def _forget(folder: Path, pattern: str) -> None:
    """Removes what kills have left beside a file; what is younger than an hour may still be written by another."""
    for left in folder.glob(pattern):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > 3600:
                left.unlink()


def save_text(path: str | Path, text: str) -> None:
    """Writes `text` as UTF-8."""
    with beside(path) as new:
        new.write_text(text, encoding="utf-8", errors="backslashreplace")


def save_figure(figure: "Figure", path: str | Path, **options: Any) -> None:
    """Writes a figure of matplotlib's in the format of `path`'s suffix; options as for its `savefig`."""
    with beside(path) as new:
        figure.savefig(new, format=new.suffix[1:] or "png", **options)


def check_folder(path: str | os.PathLike[str], option: str) -> None:
    """Refuses a folder to write to that is a file, or lies below one, before anything is computed for it."""
    place = Path(path)
    taken = next((one for one in (place, *place.parents) if one.exists()), None)
    if taken is not None and not taken.is_dir():
        raise ValueError(f"{option} names a folder, and {taken} is a file. Choose another.")
