"""The data of the tasks: built once into data/data.npz, read with numpy alone.

    python benchmarks/tuning/data.py --root FOLDER_WITH_MNIST_AND_CIFAR10

| name | samples | from |
|---|---|---|
| digits | 1,024 train, 384 validation, 384 test; (N, 1, 8, 8) | scikit-learn |
| mnist | 6,000 train, 1,024 validation, 1,024 test; (N, 1, 28, 28) | the first of each published part |
| cifar10 | 5,000 train, 1,024 validation, 1,024 test; (N, 3, 32, 32) | the first of each published part |
| text | 400,000 bytes; the last two tenths are validation and test | `pydoc_data.topics` of Python, by topic |

Images are float32, standardized by the mean and deviation of the training part. Text is int64 in 0 to 127.
Synthetic data are made in the task files, from a fixed seed.
"""

import argparse
import functools
import hashlib
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FILE = Path(__file__).resolve().parent / "data" / "data.npz"
TEXT_BYTES = 400_000


@dataclass(frozen=True)
class Split:
    """Three pairs (x, y): to train on, for an entrant to evaluate on, and for the judge."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def split(x: Tensor, y: Tensor, train: int, validation: int, test: int) -> Split:
    """The first `train` samples, the next `validation`, the next `test`."""
    ends = np.cumsum([0, train, validation, test])
    if ends[-1] > len(x):
        raise ValueError(f"{ends[-1]} samples are asked for; there are {len(x)}.")
    parts = [(x[a:b], y[a:b]) for a, b in itertools.pairwise(ends)]
    return Split(*parts)


@functools.cache
def _arrays() -> dict[str, np.ndarray]:
    with np.load(FILE) as stored:
        return dict(stored)


def _images(name: str, train: int, validation: int, test: int) -> Split:
    x = torch.from_numpy(_arrays()[f"{name}_x"]).float()
    y = torch.from_numpy(_arrays()[f"{name}_y"]).long()
    over = (0, 2, 3)
    x = (x - x[:train].mean(over, keepdim=True)) / x[:train].std(over, keepdim=True)
    return split(x, y, train, validation, test)


@functools.cache
def digits() -> Split:
    """Handwritten digits (N, 1, 8, 8), 10 classes."""
    return _images("digits", 1024, 384, 384)


@functools.cache
def mnist() -> Split:
    """Handwritten digits (N, 1, 28, 28), 10 classes."""
    return _images("mnist", 6000, 1024, 1024)


@functools.cache
def cifar10() -> Split:
    """Photographs (N, 3, 32, 32), 10 classes."""
    return _images("cifar10", 5000, 1024, 1024)


@functools.cache
def text(length: int = 64) -> Split:
    """Windows of `length` bytes as x, the same shifted by one byte as y; the windows do not overlap."""
    stream = torch.from_numpy(_arrays()["text"]).long()
    count = (len(stream) - 1) // length
    x = stream[: count * length].view(count, length)
    y = stream[1 : count * length + 1].view(count, length)
    tenth = count // 10
    return split(x, y, count - 2 * tenth, tenth, tenth)


def _topics() -> np.ndarray:
    from pydoc_data.topics import topics

    joined = "\n".join(topics[name] for name in sorted(topics))
    plain = joined.encode("ascii", errors="replace")[:TEXT_BYTES]
    if len(plain) < TEXT_BYTES:
        raise ValueError(f"pydoc_data.topics has {len(plain)} bytes; {TEXT_BYTES} are needed.")
    return np.frombuffer(plain, dtype=np.uint8)


def _bytes(data: Any, scale: float, train: int, held_out: int) -> tuple[np.ndarray, np.ndarray]:
    """The first samples of a published training and test part, in order, as bytes."""
    first = [data.x_train[:train], data.x_test[:held_out]]
    x = np.concatenate([np.asarray(part, dtype=np.float64) for part in first]) * scale
    y = np.concatenate([np.asarray(part) for part in (data.y_train[:train], data.y_test[:held_out])])
    return np.rint(x).astype(np.uint8), y.astype(np.uint8)


def build(root: Path) -> dict[str, np.ndarray]:
    """All arrays of data.npz."""
    from sklearn.datasets import load_digits

    from normscope.data import load

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    arrays = {
        "digits_x": bunch.images[order, None].astype(np.uint8),
        "digits_y": bunch.target[order].astype(np.uint8),
        "text": _topics(),
    }
    for name, train in (("mnist", 6000), ("cifar10", 5000)):
        arrays[f"{name}_x"], arrays[f"{name}_y"] = _bytes(load(name, root, standardize=None), 255.0, train, 2048)
    return arrays


def checksum(arrays: dict[str, np.ndarray]) -> str:
    """The first 16 digits of the sha256 of all arrays, by name."""
    whole = hashlib.sha256()
    for name in sorted(arrays):
        whole.update(name.encode() + arrays[name].tobytes())
    return whole.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder with mnist/ and cifar-10-batches-bin/")
    root = parser.parse_args().root
    arrays = build(root)
    FILE.parent.mkdir(exist_ok=True)
    np.savez_compressed(FILE, **arrays)
    print(f"{FILE}: {FILE.stat().st_size / 2**20:.1f} MiB, checksum {checksum(arrays)}")


if __name__ == "__main__":
    main()
