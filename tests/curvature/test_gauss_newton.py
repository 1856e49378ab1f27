"""J v by the graph of the gradient: the products of forward mode, and a way back where a model has no such graph."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from normscope import losses, measure
from normscope.curvature import Network
from normscope.isolation.flat_vectors import flat
from normscope.isolation.lending import untouched
from normscope.models import CNN, PreActResNet18


class Opaque(torch.autograd.Function):
    """x -> x^3, a right gradient without a second derivative; forward mode has one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g

    @staticmethod
    def jvp(ctx: Any, dx: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * dx


class Silent(Opaque):
    """The same, with a second derivative that is zero without a word."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g.detach()


class Once(torch.autograd.Function):
    """g -> 3 x^2 g, which says that it has no derivative."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor) -> Tensor:
        return 3 * x**2 * g

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        raise ValueError("not differentiable twice")


class Loud(Opaque):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return Once.apply(g, *ctx.saved_tensors)


class Numpy(Opaque):
    """By numpy, which takes no tensor with a graph."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.from_numpy(3 * x.numpy(force=True) ** 2 * g.numpy())


class Cubed(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x)


class Hooked(nn.Module):
    def __init__(self, hook: Any) -> None:
        super().__init__()
        self.hook = hook

    def forward(self, x: Tensor) -> Tensor:
        y = x.tanh()
        if y.requires_grad:
            y.register_hook(self.hook)
        return y


def network_with(last: nn.Module) -> nn.Module:
    """Normalizers after a convolution and after none, a convolution that none follows, a layer called twice."""
    shared = nn.Conv2d(4, 4, 3, padding=1)
    first = [nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Tanh(), shared, nn.BatchNorm2d(4)]
    rest = [nn.Tanh(), shared, nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), last, nn.Linear(5, 3)]
    return nn.Sequential(*first, *rest)


MODELS = {
    "CNN": lambda: CNN(2, 9, 3, channels=(3, 4), norm="batch"),
    "PreActResNet-18": lambda: PreActResNet18(d_out=3, width=2, norm="batch"),
    "mixed": lambda: network_with(nn.Tanh()),
    "opaque": lambda: network_with(Cubed(Opaque)),
    "loud": lambda: network_with(Cubed(Loud)),
    "silent": lambda: network_with(Cubed(Silent)),
    "numpy": lambda: network_with(Cubed(Numpy)),
    "hook in numpy": lambda: network_with(Hooked(lambda g: torch.from_numpy(g.numpy()))),
    "hook that is loud": lambda: network_with(Hooked(lambda g: Once.apply(g, torch.full_like(g, 3**-0.5)))),
    "hook that is silent": lambda: network_with(Hooked(lambda g: g.detach())),
}


def penalized(model: nn.Module) -> Any:
    return lambda f, y: F.cross_entropy(f, y) + sum(p.pow(4).sum() for p in model.parameters())


def prepared(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    model = MODELS[name]().double()
    channels, side = (3, 8) if name == "PreActResNet-18" else (2, 9 if name == "CNN" else 6)
    x = torch.randn(7, channels, side, side, dtype=torch.float64)
    model(x)
    return model, (x, torch.randint(3, (7,)))


@pytest.mark.parametrize("matrix", ["ggn", "fisher"])
@pytest.mark.parametrize("loss", ["cross-entropy", "log-labels", "penalty"])
@pytest.mark.parametrize("name", MODELS)
def test_products_begun_with_the_gradient_are_those_of_forward_mode(name, loss, matrix):
    model, batch = prepared(name)
    loss_fn = {"cross-entropy": F.cross_entropy, "log-labels": F.nll_loss, "penalty": penalized(model)}[loss]
    with untouched(model) as lent:
        begun, plain = (Network(lent, model, loss_fn, batch, stats="running") for _ in range(2))
        _, gradients, first = begun.value_and_gradients(matrix)
        torch.testing.assert_close(flat(gradients, begun.leaves), plain.gradient(), rtol=1e-10, atol=1e-12)
        product, other = begun.product(matrix, first), plain.product(matrix)
        for v in torch.randn(2, begun.size, dtype=torch.float64):
            if name in ("CNN", "PreActResNet-18", "mixed"):
                torch.testing.assert_close(first.graph.tangent_by_gradient(v), plain.jvp()(v), rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(product(v), other(v), rtol=1e-10, atol=1e-12)
        assert begun.forward_mode


@pytest.mark.parametrize("stats", ["batch", "running"])
@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
def test_a_product_depends_on_its_arguments_alone(matrix, stats):
    """The graph of the gradient's pass serves two products, and one that is not given it makes its own."""
    model, batch = prepared("CNN")
    with untouched(model) as lent:
        network = Network(lent, model, F.cross_entropy, batch, stats=stats)
        v = torch.randn(network.size, dtype=torch.float64)
        plain = network.product(matrix)(v)
        _, _, first = network.value_and_gradients(matrix)
        network.value_and_gradients("hessian")
        for graph in (first, first, None):
            torch.testing.assert_close(network.product(matrix, graph)(v), plain, rtol=1e-10, atol=1e-12)


class Heads(nn.Module):
    """Outputs of which one alone has a second derivative that is zero: squared error does not mix it with the other."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU())
        self.one, self.other = nn.Linear(5, 1), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return torch.cat([self.one(h), Silent.apply(3 * self.other(h))], dim=1)


def test_an_output_without_second_derivative_is_not_lost():
    torch.manual_seed(0)
    model, x = Heads().double(), torch.randn(9, 4, dtype=torch.float64)
    batch = x, torch.randn(9, 2, dtype=torch.float64)
    model(x)
    with untouched(model) as lent:
        begun, plain = (Network(lent, model, losses.half_mse, batch, stats="running") for _ in range(2))
        _, _, first = begun.value_and_gradients("ggn")
        v = torch.randn(begun.size, dtype=torch.float64)
        torch.testing.assert_close(begun.product("ggn", first)(v), plain.product("ggn")(v))


def test_outputs_that_the_loss_does_not_read_have_no_curvature():
    model, batch = prepared("CNN")
    found = measure(model, lambda f, y: sum(p.pow(2).sum() for p in model.parameters()), batch, stats="running")
    assert found.lambda_max == pytest.approx(2.0)


def test_a_product_makes_no_normalizer_and_no_output_again():
    model, batch = prepared("CNN")
    with untouched(model) as lent:
        network = Network(lent, model, losses.half_mse, (batch[0], torch.zeros(7, 3).double()), stats="running")
        _, _, first = network.value_and_gradients("ggn")
        product = network.product("ggn", first)
        v = torch.randn(network.size, dtype=torch.float64)
        product(v)
        with torch.profiler.profile() as seen:
            product(v)
    counts = {event.key: event.count for event in seen.key_averages()}
    # x dW of both by the patches of x, which are kept, dx W of the second by a kernel; then for each of them the sum by
    # the weights, and by the input of the second. The linear map has two products forward, two back.
    assert counts["aten::addmm"] == 2
    assert counts["aten::convolution"] == 1
    assert counts["aten::convolution_backward"] == 1
    assert counts["aten::mm"] == 2 + 4
    assert not any("batch_norm" in name for name in counts)
