"""The published files of MNIST and CIFAR-10: addresses, names, checksums, layouts on disk."""

from dataclasses import dataclass

_MNIST = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
_CIFAR10 = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


@dataclass(frozen=True)
class Published:
    """A published data set.

    Args:
        url: the folder the files are in, with a final slash.
        remote: the files to download from there.
        home: the folder, below the data root, into which `fetch` puts the files.
        files: the names of the files in `home`.
        layouts: folder below the data root -> for each file the names it may have there, best first.
    """

    url: str
    remote: tuple[str, ...]
    home: str
    files: tuple[str, ...]
    layouts: dict[str, tuple[tuple[str, ...], ...]]


_IDX = tuple((f"{name}.gz", name) for name in _MNIST)
_BIN = tuple((f"{name}.bin",) for name in _CIFAR10)
_PY = tuple((name,) for name in _CIFAR10)

SETS = {
    "mnist": Published(
        url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        remote=tuple(f"{name}.gz" for name in _MNIST),
        home="mnist",
        files=tuple(f"{name}.gz" for name in _MNIST),
        layouts={"mnist": _IDX, ".": _IDX, "MNIST/raw": _IDX},
    ),
    "cifar10": Published(
        url="https://www.cs.toronto.edu/~kriz/",
        remote=("cifar-10-binary.tar.gz",),
        home="cifar10/cifar-10-batches-bin",
        files=tuple(f"{name}.bin" for name in _CIFAR10),
        layouts={
            "cifar10/cifar-10-batches-bin": _BIN,
            "cifar10/cifar-10-batches-py": _PY,
            "cifar-10-batches-bin": _BIN,
            "cifar-10-batches-py": _PY,
        },
    ),
}

# The pickled CIFAR-10 files are published with md5 only; the rest is sha256.
CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    "train-images-idx3-ubyte": "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "cifar-10-binary.tar.gz": "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
    "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
    "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "md5:40351d587109b95175f43aff81a1287e",
}
