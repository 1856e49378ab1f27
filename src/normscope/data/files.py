"""Find the files of a published data set on this machine, and compare them with their checksums."""

import hashlib
import os
from pathlib import Path

from normscope.data.errors import DataError
from normscope.data.published import CHECKSUMS, SETS

ROOT_VARIABLE = "NORMSCOPE_DATA"


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of the data sets: `root`, else $NORMSCOPE_DATA, else the user's cache folder.

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
    """The advice in error messages for a user without the right files of `name`."""
    return (
        f"Put the files into {root / SETS[name].home}, or set {ROOT_VARIABLE} to the folder that holds them, "
        f"or run: normscope data fetch {name} --data-root {root}"
    )


def locate(name: str, root: Path) -> list[Path]:
    """The files of `name`, from the first layout below `root` that is complete.

    Returns:
        One path for each file, in the order of the published table.

    Raises:
        DataError: no layout is complete; the message names every folder and the files it lacks.
    """
    lacking = []
    for layout, files in SETS[name].layouts.items():
        folder = root / layout
        paths = [next((folder / n for n in names if (folder / n).is_file()), None) for names in files]
        complete = [path for path in paths if path is not None]
        if len(complete) == len(files):
            return complete
        absent = [" or ".join(names) for names, path in zip(files, paths, strict=True) if path is None]
        lacking.append(f"  {folder}: no {', '.join(absent)}" if folder.is_dir() else f"  {folder}: no such folder")
    raise DataError(
        f"{name} needs all its files in one of these folders:\n" + "\n".join(lacking) + f"\n{next_step(name, root)}"
    )


def checked_bytes(path: Path, advice: str, *, label: str | None = None) -> bytes:
    """The content of a published file, read once and compared with its checksum before use.

    Args:
        path: the file; the checksum is found by the file's name.
        advice: the end of the message if the file is not the right one.
        label: the file's name in the message; default its path.

    Raises:
        DataError: the file cannot be read, or has another checksum.
    """
    label = label or str(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{label} cannot be read: {error}. {advice}") from error
    algorithm, expected = CHECKSUMS[path.name].split(":")
    digest = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if digest != expected:
        raise DataError(
            f"{label} must be the published file: expected {algorithm} {expected}, "
            f"found {digest} ({len(content)} bytes). {advice}"
        )
    return content
