"""CIFAR-10, read from the binary files or from the pickled files of torchvision."""

import io
import os
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from normscope.data.dataset import Dataset, Standardize, check_standardize, standardized
from normscope.data.download import find_or_fetch
from normscope.data.files import checked_bytes, data_root, next_step


def cifar10(
    root: str | os.PathLike[str] | None = None,
    *,
    standardize: Standardize = "channel",
    download: bool = False,
) -> Dataset:
    """The 50,000 + 10,000 small photographs, as (n, 3, 32, 32) float32 in 10 classes.

    Reads `cifar-10-batches-bin/*.bin` or `cifar-10-batches-py/*` in `root/cifar10` or `root`, and checks
    every file against its published checksum.

    Args:
        root: the data folder; default $NORMSCOPE_DATA, else the user's cache folder.
        standardize: "channel", "pixel", "global" or None (pixels in [0, 1]); training statistics.
        download: fetch the files first if they are nowhere below the root.

    Returns:
        The data set, with its training and test part.

    Raises:
        DataError: files are missing or damaged.
    """
    check_standardize(standardize)
    root = data_root(root)
    advice = next_step("cifar10", root)
    images, labels = zip(
        *(read_batch(path, checked_bytes(path, advice)) for path in find_or_fetch("cifar10", root, download=download)),
        strict=True,
    )
    # The last of the six files is the test batch.
    x = standardized(np.concatenate(images[:-1]), images[-1], standardize)
    y = [torch.from_numpy(part.astype(np.int64)) for part in (np.concatenate(labels[:-1]), labels[-1])]
    return Dataset("cifar10", x[0], y[0], x[1], y[1], 10)


def read_batch(path: Path, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) and labels (n,) of one batch file.

    A binary record is a label byte and 3072 pixel bytes: red, green, blue, each row by row. The pickled
    files hold the same pixels as an array (n, 3072) and the labels as a list.
    """
    if path.suffix == ".bin":
        records = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
        pixels, labels = records[:, 1:], records[:, 0]
    else:
        batch = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
        pixels, labels = batch["data"], np.array(batch["labels"])
    return pixels.reshape(-1, 3, 32, 32), labels


def _dtype(spec: str, align: int, copy: int) -> np.dtype:
    # Old pickles pass integers for `align` and `copy`, which NumPy 2.4 deprecates.
    return np.dtype(spec, align=bool(align), copy=bool(copy))


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles numpy arrays and built-in containers; any other name is refused, so nothing can be run."""

    _admitted: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): _dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._admitted[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"a data file may hold arrays only, not {module}.{name}") from None
