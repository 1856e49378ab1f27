"""Files of a published data set on this machine: where they may lie, and whether they are the right ones."""

import hashlib
import os
from pathlib import Path

from normscope.data.errors import DataError
from normscope.data.published import CHECKSUMS, SETS

ROOT_VARIABLE = "NORMSCOPE_DATA"


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder data sets are kept in: `root`, else $NORMSCOPE_DATA, else the user's cache folder.

    Example:
        >>> data_root("sets").as_posix()
        'sets'
    """
    chosen = root or os.environ.get(ROOT_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    try:
        import pooch
    except ImportError:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normscope"
    return Path(pooch.os_cache("normscope"))


def next_step(name: str, root: Path) -> str:
    """What a user without the right files of `name` can do."""
    return (
        f"Put the files into {root / SETS[name].home}, or set {ROOT_VARIABLE} to the folder that holds them, "
        f"or run: normscope data fetch {name} --data-root {root}"
    )


def locate(name: str, root: Path) -> list[Path]:
    """The files of `name`, from the first layout below `root` that is complete.

    Returns: one path for each file, in the order of the published table.
    Raises: DataError that names every folder looked at and what it lacks.
    """
    lacking = []
    for folder, files in SETS[name].layouts.items():
        place = root / folder
        found = [next((place / n for n in names if (place / n).is_file()), None) for names in files]
        complete = [path for path in found if path is not None]
        if len(complete) == len(files):
            return complete
        absent = [" or ".join(names) for names, path in zip(files, found, strict=True) if path is None]
        lacking.append(f"  {place}: no {', '.join(absent)}" if place.is_dir() else f"  {place}: no such folder")
    raise DataError(
        f"{name} needs all its files in one of these folders:\n" + "\n".join(lacking) + f"\n{next_step(name, root)}"
    )


def checked_bytes(path: Path, advice: str, *, label: str | None = None) -> bytes:
    """The content of a published file, read once and compared with its checksum before anybody uses it.

    Args:
        path: the file; its name says which checksum holds.
        advice: the end of the message if the file is not the right one.
        label: what the message calls the file; default its path.

    Raises: DataError with the expected and the found checksum.
    """
    label = label or str(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{label} cannot be read: {error}. {advice}") from error
    algorithm, expected = CHECKSUMS[path.name].split(":")
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise DataError(
            f"{label} must be the published file: expected {algorithm} {expected}, "
            f"found {found} ({len(content)} bytes). {advice}"
        )
    return content
