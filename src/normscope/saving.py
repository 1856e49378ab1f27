"""Files written whole: beside their place first, then moved there.

A kill, a full disk or an error leaves the old file or none, never half of a new one.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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
    place = Path(path).resolve()
    if place.exists() and not place.is_file():
        what = "is a folder" if place.is_dir() else "is a device, a pipe or a socket"
        raise ValueError(f"{path} {what} and cannot be replaced by a file. Name another file.")
    new = place.with_name(f".new-{uuid4().hex[:12]}{place.suffix}")
    try:
        yield new
        # A disk that is full may say so only here.
        with new.open("rb") as written:
            os.fsync(written.fileno())
        if place.exists():
            shutil.copymode(place, new)
        os.replace(new, place)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def save_text(path: str | Path, text: str) -> None:
    """Writes `text` as UTF-8."""
    with beside(path) as new:
        new.write_text(text, encoding="utf-8")


def save_figure(figure: "Figure", path: str | Path, **options: Any) -> None:
    """Writes a figure of matplotlib's in the format of `path`'s suffix; options as for its `savefig`."""
    with beside(path) as new:
        figure.savefig(new, **options)


def check_folder(path: str | Path, option: str) -> None:
    """Refuses a folder to write to that is a file, or lies below one, before anything is computed for it."""
    place = Path(path)
    taken = next((one for one in (place, *place.parents) if one.exists()), None)
    if taken is not None and not taken.is_dir():
        raise ValueError(f"{option} names a folder, and {taken} is a file. Choose another.")
