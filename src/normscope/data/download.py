"""Fetch a published data set: download, check, unpack, and only then move into place."""

import io
import os
import tarfile
import zlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from normscope.data.errors import DataError, check_choice
from normscope.data.files import checked_bytes, data_root, locate, next_step
from normscope.data.published import SETS


def fetch(name: str, root: str | os.PathLike[str] | None = None, *, url: str | None = None) -> Path:
    """Download the files of `name` into the folder that the loaders read.

    Files arrive in a temporary folder below the root. They are moved into place once all checksums are right, so a
    failure leaves nothing behind. Right files that are already there are not fetched again; damaged ones are replaced.

    Args:
        name: "mnist" or "cifar10".
        root: the data folder; default $NORMSCOPE_DATA, else the user's cache folder.
        url: a mirror: another folder with the same files; default the publisher's.

    Returns:
        The folder that holds the files.

    Raises:
        DataError: the files cannot be downloaded, or are not the published ones.
        ValueError: an unknown name.
    """
    check_choice("data set to fetch", name, SETS)
    published, root = SETS[name], data_root(root)
    home, advice = root / published.home, f"Nothing was kept. {next_step(name, root)}"
    with suppress(DataError):
        for file in published.files:
            checked_bytes(home / file, advice)
        return home
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".fetch-", dir=root) as scratch:
            staged = Path(scratch)
            for file in published.remote:
                content = _download((url or published.url).rstrip("/") + f"/{file}", staged / file, advice)
                if file.endswith(".tar.gz"):
                    _unpack(content, staged, advice)
                    staged /= home.name
                    for member in published.files:
                        checked_bytes(staged / member, advice, label=f"{member} in {file}")
            home.mkdir(parents=True, exist_ok=True)
            for file in published.files:
                os.replace(staged / file, home / file)
    except BaseException as error:
        # Remove the folders made above if they are empty, the inner ones first.
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            raise DataError(f"{name} must be written below {root}, which failed: {error}. {advice}") from error
        raise
    return home


def find_or_fetch(name: str, root: Path, *, download: bool) -> list[Path]:
    """The files of `name` in any known layout below `root`; with `download`, fetched if they are missing."""
    if download:
        with suppress(DataError):
            return locate(name, root)
        fetch(name, root)
    return locate(name, root)


def _download(url: str, target: Path, advice: str) -> bytes:
    try:
        import pooch
        import tqdm  # noqa: F401  pooch draws its progress bar with it
    except ImportError as error:
        raise DataError(f"fetching {url} needs the package {error.name!r}, which is not installed. {advice}") from error
    try:
        # A chunk is flushed to disk each time; pooch's default of 1 KiB is slow for 170 MB.
        pooch.HTTPDownloader(progressbar=True, chunk_size=2**18)(url, str(target), None)
    except OSError as error:  # every exception of requests is one
        raise DataError(f"{url} could not be downloaded: {error}. {advice}") from error
    return checked_bytes(target, advice, label=url)


def _unpack(content: bytes, folder: Path, advice: str) -> None:
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"the archive must be readable: {error}. {advice}") from error
