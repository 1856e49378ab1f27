"""Data sets as whole tensors (two without files, two read from published files), and batches of them.

| name | loader | inputs | files |
|---|---|---|---|
| gaussian | `gaussian` | (1000, 10) float64, regression | none |
| digits | `digits` | (1797, 1, 8, 8) float32, 10 classes | ships with scikit-learn |
| mnist | `mnist` | (70000, 1, 28, 28) float32, 10 classes | 11.6 MB |
| cifar10 | `cifar10` | (60000, 3, 32, 32) float32, 10 classes | 170 MB |

Files are read below `root=`, else $NORMSCOPE_DATA, else the user's cache folder; `fetch` puts them there.
"""

import os
from collections.abc import Callable
from typing import Any

from normscope.data.batches import batches, crop_and_flip
from normscope.data.cifar10 import cifar10
from normscope.data.dataset import Dataset
from normscope.data.download import fetch
from normscope.data.errors import DataError, check_choice
from normscope.data.mnist import mnist
from normscope.data.without_files import digits, gaussian

__all__ = [
    "DataError",
    "Dataset",
    "batches",
    "cifar10",
    "crop_and_flip",
    "digits",
    "fetch",
    "gaussian",
    "load",
    "mnist",
]

_WITHOUT_FILES: dict[str, Callable[..., Dataset]] = {"gaussian": gaussian, "digits": digits}
_FROM_FILES: dict[str, Callable[..., Dataset]] = {"mnist": mnist, "cifar10": cifar10}


def load(name: str, root: str | os.PathLike[str] | None = None, **options: Any) -> Dataset:
    """The data set with this name.

    Args:
        name: "gaussian", "digits", "mnist" or "cifar10".
        root: the data folder, for the sets that have files.
        options: passed to the loader of that name.

    Returns:
        The data set, with its training and test part.

    Raises:
        ValueError: an unknown name.
        DataError: files are missing or damaged.

    Example:
        >>> load("gaussian", seed=0)
        Dataset('gaussian', x (10,), y (10,), 1000 train + 1000 test, float64 on cpu)
    """
    check_choice("data set", name, [*_WITHOUT_FILES, *_FROM_FILES])
    if name in _WITHOUT_FILES:
        return _WITHOUT_FILES[name](**options)
    return _FROM_FILES[name](root, **options)
