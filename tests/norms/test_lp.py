"""l_p normalization against the loop of tests/reference.py and its own edges."""

import math

import pytest
import torch

import reference
from normscope.norms import LpNorm1d, LpNorm2d, LpNorm3d, batch_norm, lp_norm

ORDERS = pytest.mark.parametrize("p", [1, 2, math.inf], ids=["l1", "l2", "linf"])


def random(*shape, seed=0):
    draws = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return 1.7 * draws + 0.4


@ORDERS
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.3])
@pytest.mark.parametrize(
    ("cls", "shape"), [(LpNorm1d, (6, 3)), (LpNorm1d, (4, 3, 5)), (LpNorm2d, (3, 3, 4, 2)), (LpNorm3d, (2, 3, 2, 2, 3))]
)
def test_equals_the_papers_loop_in_training_and_eval(cls, shape, eps, centered, p):
    layer = cls(3, p=p, eps=eps, momentum=0.3, centered=centered, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(random(3, seed=1))
        layer.bias.copy_(random(3, seed=2))
    w, b = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    running_mean, running_norm = torch.zeros(3).double(), torch.ones(3).double()
    for step in range(3):
        x = random(*shape, seed=step)
        y, mean, norm = reference.lp_norm(x.numpy(), w, b, eps, p, centered)
        assert (layer(x) - torch.from_numpy(y)).abs().max() <= 1e-12
        running_mean = 0.7 * running_mean + 0.3 * torch.as_tensor(mean)
        running_norm = 0.7 * running_norm + 0.3 * torch.as_tensor(norm)
    assert (layer.running_mean - running_mean).abs().max() <= 1e-12
    assert (layer.running_norm - running_norm).abs().max() <= 1e-12
    per_channel = [1, 3, *[1] * (len(shape) - 2)]
    x = random(*shape, seed=9)
    expected = (x - running_mean.view(per_channel)) / (running_norm.view(per_channel) + eps)
    expected = expected * layer.weight.view(per_channel) + layer.bias.view(per_channel)
    assert (layer.eval()(x) - expected).abs().max() <= 1e-12


@ORDERS
@pytest.mark.parametrize("centered", [False, True])
def test_gradients_to_second_order(p, centered):
    inputs = [random(4, 2, 3).requires_grad_(), random(2, seed=1).requires_grad_(), random(2, seed=2).requires_grad_()]

    def function(x, w, b):
        return lp_norm(x, w, b, p=p, eps=1e-3, centered=centered)

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_centered_l2_is_batch_norm():
    x = random(16, 3, 2)
    assert (lp_norm(x, p=2, eps=0.0, centered=True) - batch_norm(x, eps=0.0)).abs().max() <= 1e-12


@ORDERS
def test_scale_of_the_input_does_not_matter(p):
    x = random(16, 3)
    assert (lp_norm(1e3 * x, p=p, eps=0.0) - lp_norm(x, p=p, eps=0.0)).abs().max() <= 1e-12


@ORDERS
def test_a_channel_of_zeros_has_finite_output_and_gradient(p):
    x = random(6, 3)
    x[:, 1] = 0
    x.requires_grad_()
    y = lp_norm(x, p=p)
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sin().sum(), x)
    assert torch.equal(y[:, 1], torch.zeros(6, dtype=torch.float64))
    assert first.isfinite().all()
    assert second.isfinite().all()


@pytest.mark.parametrize("p", [0, 3, -1, 0.5, float("nan"), "2"])
def test_other_orders_are_refused(p):
    with pytest.raises(ValueError, match="p is one of 1, 2 and inf"):
        LpNorm2d(3, p=p)
    with pytest.raises(ValueError, match="p is one of 1, 2 and inf"):
        lp_norm(random(4, 3), p=p)


@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (4, 3), (4, 2, 2, 2)])
def test_bad_input_leaves_the_buffers_alone(shape):
    layer = LpNorm2d(3, p=1)
    with pytest.raises(ValueError, match="LpNorm2d"):
        layer(torch.ones(shape))
    assert layer.num_batches_tracked == 0
    assert torch.equal(layer.running_mean, torch.zeros(3))


def test_nan_propagates_within_its_channel():
    x = random(4, 3)
    x[0, 1] = float("nan")
    for p in (1, 2, math.inf):
        assert lp_norm(x, p=p).isnan().any(0).tolist() == [False, True, False]
