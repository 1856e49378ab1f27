"""Autograd functions without a second derivative: refused by name; those that have one, or need none, pass."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from normscope import losses, measure
from normscope.curvature.autograd.user_functions import BY_INPUT, BY_SLOPE, NoSecondDerivative, lacking
from normscope.norms import make_norm

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randn(32, 2, generator=torch.Generator().manual_seed(1))


def _slope(x: Tensor) -> Tensor:
    s = x.sigmoid()
    return s * (1 + x * (1 - s))


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * _slope(*ctx.saved_tensors)


class Right(Fused):
    @staticmethod
    def backward(ctx, g):
        return g * _slope(*ctx.saved_tensors)


class Detached(Fused):
    """Takes the gradient for a constant too."""

    @staticmethod
    def backward(ctx, g):
        with torch.no_grad():
            return g * _slope(*ctx.saved_tensors)


class SlopeSaved(Fused):
    """What only the forward knew is a constant to the second derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(_slope(x))
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class Rectified(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x > 0)
        return x.relu()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class Narrow(Right):
    """A kernel that works in float32 whatever it gets."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x.float() * x.float().sigmoid()).to(x.dtype)


class Pushed(torch.autograd.Function):
    """Once differentiable, with a derivative in forward mode."""

    @staticmethod
    def forward(x):
        return x * x.sigmoid()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * _slope(*ctx.saved_tensors)

    @staticmethod
    def jvp(ctx, t):
        return t * _slope(*ctx.saved_tensors)


class Calls(nn.Module):
    def __init__(self, function: type) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x)


def net(function: type | None) -> nn.Sequential:
    torch.manual_seed(0)
    between = nn.SiLU() if function is None else Calls(function)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), between, nn.Linear(8, 2))


@pytest.mark.parametrize("options", [{}, {"hessian": True}, {"matrix": "hessian"}, {"stats": "running"}])
def test_once_differentiable_is_refused_by_name_with_what_to_do(options):
    with pytest.raises(NoSecondDerivative, match=r"Fused in 2 has no second.*once_differentiable.*plain torch"):
        measure(net(Fused), losses.half_mse, (X, Y), **options)


def test_its_decorator_is_seen_below_others():
    class Wrapped(Fused):
        backward = staticmethod(torch.amp.custom_bwd(Fused.backward, device_type="cpu"))

    assert lacking(Wrapped, None) == [BY_SLOPE, BY_INPUT]


@pytest.mark.parametrize(
    ("function", "expected"),
    [(Right, []), (Narrow, []), (Rectified, []), (Detached, [BY_SLOPE, BY_INPUT]), (SlopeSaved, [BY_INPUT])],
)
@pytest.mark.parametrize("size", [3, 1000, 100_000])
def test_dropped_terms_are_found_and_kinks_are_none(function, expected, size):
    x = torch.randn(size, generator=torch.Generator().manual_seed(2))
    assert lacking(function, (x,)) == expected
    assert lacking(function, (x.relu(),)) == expected


def test_terms_that_a_hessian_alone_needs():
    plain = measure(net(None), losses.half_mse, (X, Y))
    assert measure(net(SlopeSaved), losses.half_mse, (X, Y)).lambda_max == pytest.approx(plain.lambda_max, rel=1e-5)
    with pytest.raises(NoSecondDerivative, match="SlopeSaved in 2.*drops terms"):
        measure(net(SlopeSaved), losses.half_mse, (X, Y), matrix="hessian")
    with pytest.raises(NoSecondDerivative, match="Detached in 2"):
        measure(net(Detached), losses.half_mse, (X, Y))


@pytest.mark.parametrize("function", [Right, Rectified])
def test_those_that_have_one_are_measured_as_the_plain_composition(function):
    plain = net(None if function is Right else function)
    if function is Rectified:
        plain[2] = nn.ReLU()
    model = net(function)
    before = vars(function).get("forward")
    expected = measure(plain, losses.half_mse, (X, Y), hessian=True)
    found = measure(model, losses.half_mse, (X, Y), hessian=True)
    assert found.lambda_max == pytest.approx(expected.lambda_max, rel=1e-4)
    assert found.hessian_max == pytest.approx(expected.hessian_max, rel=1e-3)
    assert vars(function).get("forward") is before


def test_forward_mode_is_enough_for_a_gauss_newton_matrix():
    expected = measure(net(None), losses.half_mse, (X, Y))
    assert measure(net(Pushed), losses.half_mse, (X, Y)).lambda_max == pytest.approx(expected.lambda_max, rel=1e-4)
    with pytest.raises(NoSecondDerivative, match="Pushed"):
        measure(net(Pushed), losses.half_mse, (X, Y), matrix="hessian")


@pytest.mark.parametrize("function", [SlopeSaved, Pushed])
def test_a_hessian_that_cannot_be_made_leaves_the_other_results(function):
    expected = measure(net(function), losses.half_mse, (X, Y))
    found = measure(net(function), losses.half_mse, (X, Y), hessian=True)
    assert found.lambda_max == pytest.approx(expected.lambda_max, rel=1e-6)
    assert math.isnan(found.hessian_max)
    (note,) = [note for note in found.notes if note.startswith("The Hessian was not measured: ")]
    assert f"{function.__qualname__} in 2 has no second derivative" in note


def test_one_in_the_loss_is_found():
    def loss(f: Tensor, y: Tensor) -> Tensor:
        return losses.half_mse(Fused.apply(f), y)

    with pytest.raises(NoSecondDerivative, match="Fused"):
        measure(net(None), loss, (X, Y), matrix="hessian")
    with pytest.raises(NoSecondDerivative, match="Fused"):
        measure(net(None), loss, (X, Y))


@pytest.mark.parametrize("norm", ["batch", "layer", "rms", "l1", "linf", "instance"])
def test_our_own_normalizers_pass(norm):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 8, 1), make_norm(norm, 8, dim=1), nn.Flatten(), nn.Linear(16, 2))
    found = measure(model, F.mse_loss, (X.view(32, 2, 2), Y), hessian=True)
    assert found.hessian_max > 0
