"""MNIST, read from its four idx files."""

import gzip
import os
from pathlib import Path

import numpy as np
import torch

from normscope.data.dataset import Dataset, Standardize, check_standardize, standardized
from normscope.data.download import find_or_fetch
from normscope.data.files import checked_bytes, data_root, next_step


def mnist(
    root: str | os.PathLike[str] | None = None, *, standardize: Standardize = "global", download: bool = False
) -> Dataset:
    """The 60,000 + 10,000 handwritten digits, as (n, 1, 28, 28) float32 in 10 classes.

    Reads the original idx files, gzipped or plain, in `root/mnist`, `root` or torchvision's
    `root/MNIST/raw`, and checks every one against its published checksum.

    Args:
        root: the data folder; default $NORMSCOPE_DATA, else the user's cache folder.
        standardize: "channel", "pixel", "global" or None (pixels in [0, 1]); training statistics. The usual
            (x - 0.1307) / 0.3081 is "global" with rounded numbers.
        download: fetch the files first if they are nowhere below the root.

    Returns:
        The data set, with its training and test part.

    Raises:
        DataError: files are missing or damaged.
    """
    check_standardize(standardize)
    root = data_root(root)
    advice = next_step("mnist", root)
    x_train, y_train, x_test, y_test = (
        read_idx(path, checked_bytes(path, advice)) for path in find_or_fetch("mnist", root, download=download)
    )
    x = standardized(x_train[:, None], x_test[:, None], standardize)
    y = [torch.from_numpy(labels.astype(np.int64)) for labels in (y_train, y_test)]
    return Dataset("mnist", x[0], y[0], x[1], y[1], 10)


def read_idx(path: Path, content: bytes) -> np.ndarray:
    """The array in an idx file of unsigned bytes.

    The header is 0, 0, 8 (unsigned byte), the number of axes, then each length as a big-endian int32.

    Example:
        >>> read_idx(Path("labels"), bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
        array([7, 2, 1], dtype=uint8)
    """
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    axes = content[3]
    shape = np.frombuffer(content, ">i4", count=axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
