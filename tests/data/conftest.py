"""Tiny files in the layouts of the published ones, with their checksums admitted for one test."""

import gc
import gzip
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from normscope.data import published


@pytest.fixture(autouse=True)
def no_data_of_the_user(monkeypatch, tmp_path_factory, request):
    """Only tests that ask for the real files see the user's data folder."""
    if "real_files" not in request.fixturenames:
        monkeypatch.delenv("NORMSCOPE_DATA", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def sockets_of_failed_downloads():
    """`requests` leaves them to the garbage collector, whose warning would fall on whichever test runs then."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def admit(monkeypatch) -> Callable[[str, bytes], bytes]:
    """Make `content` the published content of the file `name`."""

    def admitted(name: str, content: bytes) -> bytes:
        algorithm = published.CHECKSUMS[name].split(":")[0]
        monkeypatch.setitem(published.CHECKSUMS, name, f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}")
        return content

    return admitted


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


@pytest.fixture
def mnist_files(admit) -> tuple[dict[str, bytes], list[np.ndarray]]:
    """Content by file name, gzipped and plain, and the four arrays in it (12 and 5 images)."""
    rng = np.random.default_rng(0)
    arrays = [
        part
        for n in (12, 5)
        for part in (
            rng.integers(0, 256, (n, 28, 28), dtype=np.uint8),
            rng.integers(0, 10, n, dtype=np.uint8),
        )
    ]
    files = {}
    for (zipped, plain), array in zip(published.SETS["mnist"].layouts["mnist"], arrays, strict=True):
        files[plain] = admit(plain, idx(array))
        files[zipped] = admit(zipped, gzip.compress(idx(array)))
    return files, arrays


def old_pickle(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """A batch as Python 2 pickled it: byte strings, numpy.core, integers for the flags of the dtype."""
    n = len(labels)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K" + bytes([n]) + b"M\x00\x0c\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + (n * 3072).to_bytes(4, "little") + pixels.tobytes() + b"tb"
    )
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + listed + b"u."


@pytest.fixture
def cifar10_files(admit) -> tuple[dict[str, bytes], np.ndarray, np.ndarray]:
    """Content by file name, binary and pickled, and the pixels (6, 4, 3072) and labels (6, 4) in it."""
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (6, 4, 3072), dtype=np.uint8)
    labels = rng.integers(0, 10, (6, 4), dtype=np.uint8)
    files = {}
    for name, x, y in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], pixels, labels, strict=True):
        files[f"{name}.bin"] = admit(f"{name}.bin", np.concatenate([y[:, None], x], axis=1).tobytes())
        files[name] = admit(name, old_pickle(x, y))
    return files, pixels, labels


@pytest.fixture
def write() -> Callable[[Path, dict[str, bytes], str], None]:
    """Write those of `files` whose name ends in `suffix` into a folder ("" for names without a dot)."""

    def written(folder: Path, files: dict[str, bytes], suffix: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            if Path(name).suffix == suffix:
                (folder / name).write_bytes(content)

    return written
