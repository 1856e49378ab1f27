"""The losses against plain loops."""

import math

import pytest
import torch

from normscope.losses import LOSSES, cross_entropy, half_mse, half_sse, mse


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def half_squares(output, target):
    """1/2 sum_n sum_k (f_k - y_k)^2, one term at a time."""
    rows = zip(output.tolist(), target.tolist(), strict=True)
    return 0.5 * math.fsum((f - y) ** 2 for row, goal in rows for f, y in zip(row, goal, strict=True))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 3), (7, 10)])
def test_squared_errors_against_loops(n, k):
    output, target = random(n, k), random(n, k, seed=1)
    expected = half_squares(output, target)
    assert half_sse(output, target).item() == pytest.approx(expected, rel=1e-13)
    assert half_mse(output, target).item() == pytest.approx(expected / n, rel=1e-13)


def test_half_mse_is_half_the_outputs_times_torch_mse():
    output, target = random(6, 10), random(6, 10, seed=1)
    expected = 10 / 2 * torch.nn.functional.mse_loss(output, target)
    torch.testing.assert_close(half_mse(output, target), expected)
    torch.testing.assert_close(mse(output, target), torch.nn.functional.mse_loss(output, target))
    with pytest.raises(ValueError, match="would broadcast"):
        mse(output[:, :1], target[:, 0])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("loss", [half_mse, half_sse])
def test_labels_are_one_hot_targets(loss, dtype):
    output, labels = random(4, 3), torch.tensor([2, 0, 1, 2])
    one_hot = [[float(k == label) for k in range(3)] for label in labels.tolist()]
    assert loss(output, labels.to(dtype)).item() == loss(output, torch.tensor(one_hot, dtype=torch.float64)).item()


def test_boolean_labels_are_two_classes():
    output = random(3, 2)
    assert half_sse(output, torch.tensor([True, False, True])) == half_sse(output, torch.tensor([1, 0, 1]))


def test_integers_of_the_outputs_shape_are_values():
    output, target = random(3, 2), torch.tensor([[1, 0], [4, -1], [0, 1]])
    assert half_sse(output, target).item() == pytest.approx(half_squares(output, target), rel=1e-13)


def test_gradient_is_the_residual():
    output, target = random(4, 3).requires_grad_(), random(4, 3, seed=1)
    half_sse(output, target).backward()
    assert torch.equal(output.grad, output.detach() - target)


@pytest.mark.parametrize("loss", [half_mse, half_sse])
@pytest.mark.parametrize(
    ("output", "target"),
    [((4, 1), (4,)), ((4, 3), (3,)), ((4, 3), (1, 3)), ((4, 3), (4, 1)), ((4,), (4, 1)), ((1, 3), (4, 3))],
)
def test_broadcasting_is_refused(loss, output, target):
    with pytest.raises(ValueError, match="would broadcast. Reshape") as error:
        loss(random(*output), random(*target))
    assert str(output) in str(error.value)
    assert str(target) in str(error.value)


@pytest.mark.parametrize(("output", "target"), [((4, 3), (4, 1)), ((4, 3, 3, 3), (4, 3, 3)), ((4, 3), (2, 2))])
def test_labels_of_another_shape_are_refused(output, target):
    with pytest.raises(ValueError, match="compares tensors of one shape"):
        half_sse(random(*output), torch.zeros(target, dtype=torch.int64))


def test_label_out_of_range_is_refused():
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        half_sse(random(2, 3), torch.tensor([0, 3]))


def test_cross_entropy_is_torchs_and_the_table_is_complete():
    assert cross_entropy is torch.nn.functional.cross_entropy
    assert {"half_mse": half_mse, "half_sse": half_sse, "cross_entropy": cross_entropy} == LOSSES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_the_outputs(dtype):
    assert half_mse(random(2, 3, dtype=dtype), torch.tensor([0, 1])).dtype == dtype
