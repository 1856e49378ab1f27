"""Fetching from a server on this machine: right files, wrong ones, none; and nothing left behind."""

import io
import socket
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from normscope.data import DataError, cifar10, fetch, mnist, published

ARCHIVE = "cifar-10-binary.tar.gz"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        content = self.server.files.get(self.path.removeprefix("/"))
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if self.server.hang_up else content)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.files, running.asked, running.hang_up = {}, [], False
        running.url = f"http://127.0.0.1:{running.server_address[1]}/"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def archive(admit, cifar10_files):
    binary = {f"cifar-10-batches-bin/{n}": c for n, c in cifar10_files[0].items() if n.endswith(".bin")}
    return admit(ARCHIVE, packed({**binary, "cifar-10-batches-bin/readme.html": b"<p>"}))


def left(root):
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def failure(name, root, url) -> str:
    """The message of a fetch that fails; it names the next step, and nothing is left below the root."""
    with pytest.raises(DataError) as caught:
        fetch(name, root, url=url)
    message = str(caught.value)
    assert left(root) == []
    assert "Nothing was kept." in message
    assert "NORMSCOPE_DATA" in message
    assert f"Put the files into {root / published.SETS[name].home}" in message
    assert f"normscope data fetch {name} --data-root " in message
    return message


def test_mnist_is_fetched_and_read(tmp_path, server, mnist_files):
    server.files, (_, y_train, _, _) = mnist_files
    assert fetch("mnist", tmp_path / "new", url=server.url) == tmp_path / "new/mnist"
    assert left(tmp_path / "new") == ["mnist", *(f"mnist/{n}" for n in sorted(published.SETS["mnist"].files))]
    np.testing.assert_array_equal(mnist(tmp_path / "new").y_train, y_train)


def test_cifar10_is_fetched_unpacked_and_read(tmp_path, server, archive, cifar10_files):
    server.files = {ARCHIVE: archive}
    home = fetch("cifar10", tmp_path, url=server.url)
    assert home == tmp_path / "cifar10/cifar-10-batches-bin"
    assert sorted(p.name for p in home.iterdir()) == sorted(published.SETS["cifar10"].files)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cifar10"]
    np.testing.assert_array_equal(cifar10(tmp_path).y_test, cifar10_files[2][5])


def test_right_files_are_not_fetched_again_and_damaged_ones_are_replaced(tmp_path, server, mnist_files):
    server.files = mnist_files[0]
    home = fetch("mnist", tmp_path, url=server.url)
    assert len(server.asked) == 4
    fetch("mnist", tmp_path, url=server.url)
    assert len(server.asked) == 4
    (home / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    fetch("mnist", tmp_path, url=server.url)
    assert (home / "t10k-labels-idx1-ubyte.gz").read_bytes() == mnist_files[0]["t10k-labels-idx1-ubyte.gz"]


@pytest.fixture
def default_url(monkeypatch, server):
    for name, entry in published.SETS.items():
        moved = published.Published(server.url, entry.remote, entry.home, entry.files, entry.layouts)
        monkeypatch.setitem(published.SETS, name, moved)


@pytest.mark.usefixtures("default_url")
def test_download_fetches_only_what_is_missing(tmp_path, server, mnist_files, write):
    server.files = mnist_files[0]
    write(tmp_path / "torchvision/MNIST/raw", mnist_files[0], "")
    mnist(tmp_path / "torchvision", download=True)
    assert server.asked == []
    assert len(mnist(tmp_path / "empty", download=True).x_train) == 12
    assert len(server.asked) == 4


@pytest.mark.usefixtures("default_url")
def test_download_that_fails_is_the_error_of_the_fetch(tmp_path, server):
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz could not be downloaded: 404"):
        cifar10(tmp_path, download=True)
    assert left(tmp_path) == []


def test_truncated_file_has_the_wrong_checksum(tmp_path, server, mnist_files):
    last = "t10k-labels-idx1-ubyte.gz"
    server.files = mnist_files[0] | {last: mnist_files[0][last][:-5]}
    message = failure("mnist", tmp_path, server.url)
    assert message.startswith(f"{server.url}{last} must be the published file: expected ")
    assert published.CHECKSUMS[last].removeprefix("sha256:") in message
    assert f"({len(mnist_files[0][last]) - 5} bytes)" in message


def test_connection_that_breaks_half_way(tmp_path, server, archive):
    server.files, server.hang_up = {ARCHIVE: archive}, True
    # Older urllib3 takes the short answer for the whole file; then the checksum speaks.
    message = failure("cifar10", tmp_path, server.url)
    assert "could not be downloaded" in message or "must be the published file" in message


def test_file_not_found(tmp_path, server):
    message = failure("mnist", tmp_path, server.url)
    assert f"{server.url}train-images-idx3-ubyte.gz could not be downloaded: 404" in message


def test_nobody_answers(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as reserved:  # bound, but not listening: refused
        reserved.bind(("127.0.0.1", 0))
        message = failure("mnist", tmp_path, f"http://127.0.0.1:{reserved.getsockname()[1]}")
    assert "could not be downloaded" in message


@pytest.mark.parametrize(
    "damage", [lambda c: c[: len(c) // 2], lambda c: b"no archive", lambda c: c[:-40] + b"\0" * 40]
)
def test_damaged_archive_with_the_right_checksum(tmp_path, server, archive, admit, damage):
    server.files = {ARCHIVE: admit(ARCHIVE, damage(archive))}
    message = failure("cifar10", tmp_path, server.url)
    assert "the archive must be readable" in message


def test_archive_that_lacks_or_damages_a_file(tmp_path, server, cifar10_files, admit):
    binary = {f"cifar-10-batches-bin/{n}": c for n, c in cifar10_files[0].items() if n.endswith(".bin")}
    binary["cifar-10-batches-bin/data_batch_2.bin"] = b"short"
    server.files = {ARCHIVE: admit(ARCHIVE, packed(binary))}
    assert "data_batch_2.bin in cifar-10-binary.tar.gz must be" in failure("cifar10", tmp_path, server.url)
    del binary["cifar-10-batches-bin/test_batch.bin"], binary["cifar-10-batches-bin/data_batch_2.bin"]
    server.files = {ARCHIVE: admit(ARCHIVE, packed(binary))}
    assert "data_batch_2.bin in cifar-10-binary.tar.gz cannot be read" in failure("cifar10", tmp_path, server.url)


def test_archive_that_climbs_out_of_its_folder(tmp_path, server, admit):
    server.files = {ARCHIVE: admit(ARCHIVE, packed({"../../../climbed": b"x"}))}
    root = tmp_path / "a/b"
    root.mkdir(parents=True)
    assert "the archive must be readable" in failure("cifar10", root, server.url)
    assert not list(tmp_path.rglob("climbed"))


def test_interrupted_fetch_leaves_nothing(tmp_path, monkeypatch):
    import pooch

    class Interrupted:
        def __init__(self, **options):
            pass

        def __call__(self, url, target, _):
            with open(target, "wb") as file:
                file.write(b"half")
            raise KeyboardInterrupt

    monkeypatch.setattr(pooch, "HTTPDownloader", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch("mnist", tmp_path)
    assert left(tmp_path) == []


@pytest.mark.parametrize("package", ["pooch", "tqdm"])
def test_without_the_package(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert f"needs the package '{package}'" in failure("mnist", tmp_path, "http://127.0.0.1:9/")


def test_root_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"mnist must be written below .*file, which failed"):
        fetch("mnist", tmp_path / "file")


def test_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"one of 'mnist', 'cifar10'; got 'minst'\. Did you mean 'mnist'\?"):
        fetch("minst", tmp_path)
