"""Write files as a whole: to a temporary file in the same folder, which then replaces the old one.

After a kill, a full disk or an error there is the old file or none, never half of a new one.
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
    """A temporary path in the same folder, with the same suffix; the file written there replaces `path` at the end.

    If the block raises, the temporary file is removed and `path` is unchanged. A link keeps pointing to its file.

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
    prefix, ending = f".{place.stem[:60]}-", f".new{place.suffix[:16]}"
    _forget(place.parent, f"{escape(prefix)}????????{escape(ending)}")
    new = place.with_name(f"{prefix}{uuid4().hex[:8]}{ending}")
    try:
        yield new
        # A full disk may be reported only here.
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
    """Remove temporary files of killed processes, but none younger than an hour, which may still be in use."""
    for left in folder.glob(pattern):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > 3600:
                left.unlink()


def save_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8."""
    with beside(path) as new:
        new.write_text(text, encoding="utf-8", errors="backslashreplace")


def save_figure(figure: "Figure", path: str | Path, **options: Any) -> None:
    """Write a matplotlib figure in the format of `path`'s suffix, with options of its `savefig`."""
    with beside(path) as new:
        figure.savefig(new, format=new.suffix[1:] or "png", **options)


def check_folder(path: str | os.PathLike[str], option: str) -> None:
    """Raise a ValueError if an output folder is a file, or lies below one; called before anything is computed."""
    folder = Path(path)
    existing = next((parent for parent in (folder, *folder.parents) if parent.exists()), None)
    if existing is not None and not existing.is_dir():
        raise ValueError(f"{option} names a folder, and {existing} is a file. Choose another.")
