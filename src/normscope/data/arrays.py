"""Read arrays x and y from a user's .npz file, checked before they are read."""

import math
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy

from normscope.messages import brief, first_line
from normscope.results.decoding import check_file

MOST_BYTES = 2**36
_NUMBERS = "biuf"


def read_xy(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """The numeric arrays x and y of a .npz file, with equal numbers of rows; nothing in the file is executed.

    Raises:
        ValueError: the file is not a .npz file, is damaged, holds objects, text or dates, or its header claims another
            size than the file has. The message names the file.
    """
    if not Path(path).exists():
        raise ValueError(f"There is no file {path}. Name a .npz with arrays x and y.")
    check_file(path, most=math.inf)
    try:
        with zipfile.ZipFile(path) as archive:
            x, y = (_array(archive, name, str(path)) for name in ("x", "y"))
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(
            f"{path} is not a readable .npz file ({first_line(error)}). Make it with numpy.savez(path, x=x, y=y)."
        ) from error
    if len(x) != len(y):
        raise ValueError(f"{path} must hold as many targets as samples; got {len(x)} in x and {len(y)} in y.")
    return x, y


# Errors of reading a damaged header.
_UNREADABLE = (TypeError, ValueError, SyntaxError, OverflowError, MemoryError, RecursionError, TokenError)


def _array(archive: zipfile.ZipFile, name: str, path: str) -> np.ndarray:
    names = [entry_name.removesuffix(".npy") for entry_name in archive.namelist()]
    if f"{name}.npy" not in archive.namelist():
        raise ValueError(f"{path} must hold arrays x and y; it has {brief(', '.join(names)) or 'none'}.")
    entry = archive.getinfo(f"{name}.npy")
    try:
        with archive.open(entry) as stream:
            shape, dtype = _header(stream)
            _check(f"{name} of {path}", shape, dtype, entry.file_size - stream.tell())
        with archive.open(entry) as stream:
            return _native(np.asarray(npy.read_array(stream, allow_pickle=False)))
    except _UNREADABLE as error:
        if path in str(error):
            raise
        raise ValueError(
            f"{name} of {path} is not a readable array ({first_line(error)}). Write the file again."
        ) from error


def _native(array: np.ndarray) -> np.ndarray:
    """The array in this machine's byte order, and in a precision that torch has."""
    native = np.dtype(np.float64) if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    return array.astype(native, copy=False)


def _header(stream: Any) -> tuple[tuple[int, ...], np.dtype]:
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    return shape, dtype


def _check(what: str, shape: tuple[int, ...], dtype: np.dtype, file_bytes: int) -> None:
    if dtype.kind not in _NUMBERS:
        raise ValueError(f"{what} must hold numbers; got dtype {brief(str(dtype), 60)}.")
    if not shape:
        raise ValueError(f"{what} must have one row a sample; got a single number.")
    size = math.prod(shape) * dtype.itemsize
    if min(shape) < 0 or size != file_bytes:
        raise ValueError(f"{what} is damaged: its header claims {size:,} bytes and the file has {file_bytes:,}.")
    if size > MOST_BYTES:
        raise ValueError(f"{what} has {size / 2**30:,.0f} GiB; arrays up to {MOST_BYTES >> 30} GiB are read.")
