"""MNIST and CIFAR-10 from files: layouts, checksums, missing files, and the real sets where they are."""

import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from normscope.data import DataError, cifar10, load, mnist
from normscope.data.cifar10 import read_batch
from normscope.data.files import data_root


@pytest.mark.parametrize("folder", ["mnist", ".", "MNIST/raw"])
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_mnist_in_every_layout(tmp_path, mnist_files, write, folder, suffix):
    files, (x_train, y_train, x_test, y_test) = mnist_files
    write(tmp_path / folder, files, suffix)
    data = mnist(tmp_path, standardize=None)
    np.testing.assert_array_equal(data.x_train, x_train[:, None].astype(np.float32) / 255)
    np.testing.assert_array_equal(data.x_test, x_test[:, None].astype(np.float32) / 255)
    np.testing.assert_array_equal(data.y_train, y_train)
    np.testing.assert_array_equal(data.y_test, y_test)
    assert data.y_train.dtype == torch.int64
    assert data.classes == 10


@pytest.mark.parametrize("base", [".", "cifar10"])
@pytest.mark.parametrize(("kind", "suffix"), [("bin", ".bin"), ("py", "")])
def test_cifar10_in_every_layout(tmp_path, cifar10_files, write, base, kind, suffix):
    files, pixels, labels = cifar10_files
    write(tmp_path / base / f"cifar-10-batches-{kind}", files, suffix)
    data = cifar10(tmp_path, standardize=None)
    images = pixels.reshape(6, 4, 3, 32, 32).astype(np.float32) / 255
    np.testing.assert_array_equal(data.x_train, np.concatenate(images[:5]))
    np.testing.assert_array_equal(data.x_test, images[5])
    np.testing.assert_array_equal(data.y_train, np.concatenate(labels[:5]))
    np.testing.assert_array_equal(data.y_test, labels[5])
    # red, green, blue planes, row by row
    assert data.x_test[2, 1, 3, 4] == np.float32(pixels[5, 2, 1024 + 3 * 32 + 4]) / np.float32(255)


def test_default_standardization(tmp_path, mnist_files, cifar10_files, write):
    write(tmp_path, mnist_files[0], ".gz")
    write(tmp_path / "cifar-10-batches-bin", cifar10_files[0], ".bin")
    digits, photos = load("mnist", tmp_path).x_train.double(), load("cifar10", tmp_path).x_train.double()
    assert abs(digits.mean()) < 1e-6
    assert abs(digits.std(correction=0) - 1) < 1e-6
    assert photos.mean((0, 2, 3)).abs().max() < 1e-6
    assert (photos.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-6
    assert abs(digits.mean((0, 1))).max() > 1e-3  # not pixel by pixel


def test_a_complete_layout_is_preferred_to_a_partial_one(tmp_path, cifar10_files, write):
    files, _, labels = cifar10_files
    write(tmp_path / "cifar-10-batches-py", files, "")
    write(tmp_path / "cifar-10-batches-bin", files, ".bin")
    (tmp_path / "cifar-10-batches-bin/data_batch_3.bin").unlink()
    np.testing.assert_array_equal(cifar10(tmp_path).y_test, labels[5])


def test_root_then_variable_then_cache(tmp_path, mnist_files, write, monkeypatch):
    write(tmp_path / "set", mnist_files[0], ".gz")
    monkeypatch.setenv("NORMSCOPE_DATA", str(tmp_path / "set"))
    assert len(mnist().x_test) == 5
    assert data_root() == tmp_path / "set"
    assert data_root(tmp_path / "other") == tmp_path / "other"
    monkeypatch.setenv("NORMSCOPE_DATA", "")
    assert data_root().name == "normscope"
    assert data_root("~/sets") == Path.home() / "sets"


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="the cache folder lies elsewhere")
def test_cache_folder_without_pooch_is_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with_pooch = data_root()
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert data_root() == with_pooch == tmp_path / "normscope"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path.home() / ".cache" / "normscope"


def test_missing_mnist_names_every_place(tmp_path):
    (tmp_path / "mnist").mkdir()
    with pytest.raises(DataError) as caught:
        mnist(tmp_path)
    message = str(caught.value)
    assert f"{tmp_path / 'mnist'}: no train-images-idx3-ubyte.gz or train-images-idx3-ubyte, " in message
    assert f"{tmp_path}: no train-images" in message
    assert f"{tmp_path / 'MNIST' / 'raw'}: no such folder" in message
    assert f"Put the files into {tmp_path / 'mnist'}" in message
    assert "NORMSCOPE_DATA" in message
    assert "normscope data fetch mnist --data-root " in message


def test_missing_cifar10_names_what_each_place_lacks(tmp_path, cifar10_files, write):
    write(tmp_path / "cifar-10-batches-py", cifar10_files[0], "")
    (tmp_path / "cifar-10-batches-py/data_batch_2").unlink()
    with pytest.raises(DataError) as caught:
        cifar10(tmp_path)
    message = str(caught.value)
    for folder in ("cifar10/cifar-10-batches-bin", "cifar10/cifar-10-batches-py", "cifar-10-batches-bin"):
        assert f"{tmp_path / folder}: no such folder" in message
    assert f"{tmp_path / 'cifar-10-batches-py'}: no data_batch_2\n" in message
    assert "normscope data fetch cifar10 --data-root " in message


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_damaged_mnist_is_refused(tmp_path, mnist_files, write, suffix):
    write(tmp_path, mnist_files[0], suffix)
    path = tmp_path / f"t10k-labels-idx1-ubyte{suffix}"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(DataError, match=r"published file: expected sha256 \w{64}, found \w{64} \(\d+ bytes\)"):
        mnist(tmp_path)


@pytest.mark.parametrize(("kind", "suffix", "algorithm"), [("bin", ".bin", "sha256"), ("py", "", "md5")])
def test_damaged_cifar10_is_refused(tmp_path, cifar10_files, write, kind, suffix, algorithm):
    folder = tmp_path / f"cifar-10-batches-{kind}"
    write(folder, cifar10_files[0], suffix)
    (folder / f"data_batch_4{suffix}").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        cifar10(tmp_path)
    message = str(caught.value)
    assert message.startswith(str(folder / f"data_batch_4{suffix}"))
    assert f"expected {algorithm} " in message
    assert "(0 bytes)" in message
    assert "normscope data fetch cifar10" in message


def test_unreadable_file_is_one_message(tmp_path, mnist_files, write, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    write(tmp_path, mnist_files[0], ".gz")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=r"train-images.*cannot be read: .*Permission denied.*data fetch mnist"):
        mnist(tmp_path)


def test_a_wrong_option_is_told_before_files_are_touched(tmp_path):
    for loader in (mnist, cifar10):
        with pytest.raises(ValueError, match="standardize must be one of"):
            loader(tmp_path, standardize="none")


class Harm:
    def __reduce__(self):
        return os.mkdir, ("harm-was-done",)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_can_run_nothing(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps({"data": Harm(), "labels": []}, protocol=protocol)
    with pytest.raises(pickle.UnpicklingError, match=r"arrays only, not \w+\.mkdir"):
        read_batch(Path("data_batch_1"), content)
    assert list(tmp_path.iterdir()) == []


def test_a_pickle_cannot_reach_other_names_of_numpy():
    with pytest.raises(pickle.UnpicklingError, match=r"not numpy\.load"):
        read_batch(Path("data_batch_1"), b"cnumpy\nload\n.")


@pytest.fixture
def real_files(request):
    name = request.param
    root = os.environ.get("NORMSCOPE_DATA")
    if not root:
        pytest.skip("NORMSCOPE_DATA does not point at the published files")
    try:
        return load(name)
    except DataError as error:
        if "needs all its files" not in str(error):
            raise
        pytest.skip(f"no {name} below {root}")


@pytest.mark.parametrize("real_files", ["mnist"], indirect=True)
def test_real_mnist(real_files):
    data = real_files
    assert data.x_train.shape == (60_000, 1, 28, 28)
    assert data.x_test.shape == (10_000, 1, 28, 28)
    assert data.y_train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    # black, with the mean 0.1307 and deviation 0.3081 that everybody quotes
    assert data.x_train.min().item() == pytest.approx(-0.1307 / 0.3081, abs=2e-4)
    assert data.x_train.max().item() == pytest.approx((1 - 0.1307) / 0.3081, abs=2e-3)


@pytest.mark.parametrize("real_files", ["cifar10"], indirect=True)
def test_real_cifar10(real_files):
    data = real_files
    assert data.x_train.shape == (50_000, 3, 32, 32)
    assert data.x_test.shape == (10_000, 3, 32, 32)
    assert torch.bincount(data.y_train).tolist() == [5000] * 10
    assert torch.bincount(data.y_test).tolist() == [1000] * 10
    # black, with the means and deviations that everybody quotes
    quoted = -torch.tensor([0.4914, 0.4822, 0.4465]) / torch.tensor([0.2470, 0.2435, 0.2616])
    torch.testing.assert_close(data.x_train.amin((0, 2, 3)), quoted, rtol=0, atol=1e-3)
