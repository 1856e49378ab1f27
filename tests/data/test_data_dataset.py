"""The data set, its standardization, and the two sets without files."""

import numpy as np
import pytest
import torch

from normscope.data import Dataset, digits, gaussian, load
from normscope.data.dataset import standardized

AXES = {"channel": (0, 2, 3), "pixel": (0,), "global": (0, 1, 2, 3)}


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    train, test = (rng.integers(0, 256, (n, 3, 4, 5), dtype=np.uint8) for n in (40, 7))
    train[:, 1, 2, 3] = 255  # a pixel that never changes in training, but does in the test part
    return train, test


@pytest.mark.parametrize("how", AXES)
def test_standardized_equals_float64_numpy(images, how):
    train, test = images
    x = train / 255.0
    mean, std = x.mean(AXES[how], keepdims=True), x.std(AXES[how], keepdims=True)
    std[np.ptp(x, axis=AXES[how], keepdims=True) == 0] = 1.0
    got_train, got_test = standardized(train, test, how)
    assert got_train.dtype == got_test.dtype == torch.float32
    # float32 has 24 bits, values here are below 3: 4 ulp.
    np.testing.assert_allclose(got_train, (x - mean) / std, atol=1e-6)
    np.testing.assert_allclose(got_test, (test / 255.0 - mean) / std, atol=1e-6)


def test_a_constant_pixel_is_only_centred(images):
    train, test = images
    got_train, got_test = standardized(train, test, "pixel")
    assert torch.equal(got_train[:, 1, 2, 3], torch.zeros(40))
    np.testing.assert_allclose(got_test[:, 1, 2, 3], test[:, 1, 2, 3] / 255.0 - 1.0, atol=1e-7)


def test_without_standardization_pixels_lie_in_the_unit_interval(images):
    got, _ = standardized(*images, None)
    np.testing.assert_array_equal(got, images[0].astype(np.float32) / 255)


def test_to_changes_floats_and_leaves_labels():
    data = digits(seed=0).to(dtype=torch.float64)
    assert data.x_train.dtype == data.x_test.dtype == torch.float64
    assert data.y_train.dtype == data.y_test.dtype == torch.int64
    assert gaussian(5, seed=0).to(dtype=torch.float32).y_test.dtype == torch.float32


def test_to_moves_every_tensor():
    data = digits(seed=0).to("meta")
    assert {t.device.type for t in (data.x_train, data.y_train, data.x_test, data.y_test)} == {"meta"}
    assert "meta" in repr(data)


def test_dataset_is_frozen():
    data = gaussian(5, seed=0)
    with pytest.raises(AttributeError):
        data.name = "other"


def test_gaussian_is_linear_with_one_map_for_both_parts():
    data = gaussian(seed=3)
    assert data.x_train.shape == data.x_test.shape == data.y_train.shape == (1000, 10)
    assert data.classes is None
    A = torch.linalg.lstsq(data.x_train, data.y_train).solution
    torch.testing.assert_close(data.x_test @ A, data.y_test, rtol=0, atol=1e-12)


def test_gaussian_has_unit_moments():
    data = gaussian(20_000, 10, 400, seed=0)
    A = torch.linalg.lstsq(data.x_train, data.y_train).solution
    for draws in (data.x_train, data.x_test, A):
        # five standard errors: the seed is fixed, so a false alarm (1e-6) would have shown once.
        assert abs(draws.mean()) < 5 / draws.numel() ** 0.5
        assert abs(draws.var() - 1) < 5 * (2 / draws.numel()) ** 0.5


def test_gaussian_seed_fixes_all_and_global_state_is_untouched():
    state = torch.get_rng_state()
    one, two, other = gaussian(8, seed=1), gaussian(8, seed=1), gaussian(8, seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.x_train, two.x_train)
    assert torch.equal(one.y_test, two.y_test)
    assert not torch.equal(one.x_train, other.x_train)
    assert not torch.equal(one.x_train, one.x_test)


def test_gaussian_in_float32_is_the_same_data_rounded():
    double, single = gaussian(8, 3, 2, seed=1), gaussian(8, 3, 2, seed=1, dtype=torch.float32)
    assert torch.equal(double.y_train.float(), single.y_train)
    assert torch.equal(double.x_test.float(), single.x_test)


def test_digits_are_split_without_loss_or_overlap():
    from sklearn.datasets import load_digits

    data = digits(seed=5, standardize=None)
    x = torch.cat([data.x_train, data.x_test]).flatten(1).double().numpy() * 16
    y = torch.cat([data.y_train, data.y_test]).numpy()
    pixels, labels = load_digits(return_X_y=True)
    rows = np.column_stack([x, y])
    original = np.column_stack([pixels, labels])
    assert np.array_equal(rows[np.lexsort(rows.T)], original[np.lexsort(original.T)])
    assert data.x_train.shape == (1438, 1, 8, 8)
    assert data.classes == 10


def test_digits_statistics_are_those_of_the_training_part():
    data = digits(seed=5)
    std, mean = torch.std_mean(data.x_train.double(), dim=0, correction=0)
    assert mean.abs().max() < 1e-6
    assert torch.all(((std - 1).abs() < 1e-5) | (std == 0))  # corner pixels are constant
    assert data.x_test.mean(dim=0).abs().max() > 1e-3
    assert torch.isfinite(data.x_test).all()


def test_digits_seed_fixes_the_split():
    assert torch.equal(digits(seed=1).y_test, digits(seed=1).y_test)
    assert not torch.equal(digits(seed=1).y_test, digits(seed=2).y_test)


@pytest.mark.parametrize("fraction", [0, 1, 1.5, -0.2, 1e-9])
def test_digits_refuses_an_empty_part(fraction):
    with pytest.raises(ValueError, match=r"both sides of the split.*0\.2"):
        digits(seed=0, test_fraction=fraction)


def test_a_wrong_standardize_lists_the_right_ones():
    with pytest.raises(ValueError, match=r"'channel', 'pixel', 'global', None; got 'chanel'.*mean 'channel'\?"):
        digits(seed=0, standardize="chanel")


def test_load_by_name_and_nearest_match():
    assert isinstance(load("digits", seed=0), Dataset)
    assert load("gaussian", n=7, seed=0).x_train.shape == (7, 10)
    with pytest.raises(ValueError, match=r"'gaussian', 'digits', 'mnist', 'cifar10'.*'cifar10'\?"):
        load("CIFAR-10")
