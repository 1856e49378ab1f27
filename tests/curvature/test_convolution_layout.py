"""Convolutions with channels last inside, and patches: torch's derivatives, whatever the user does around them."""

import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from normscope.curvature import Solver, measure
from normscope.curvature.autograd.convolution_layout import ChannelsLast, Image, convolved, image
from normscope.curvature.autograd.patching import fast_second_derivatives
from normscope.losses import half_mse

FEW = {"stride": 2}
MANY = {"padding": 1}
PADDED = {"stride": (2, 3), "padding": (1, 2), "dilation": (2, 3)}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


class Doubled(torch.autograd.Function):
    """Of a user who views what comes back to him, twice."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx, g: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(g.detach().view(-1)).view(g.shape) if not torch.is_grad_enabled() else Flat.apply(g)


class Flat(Doubled):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return (2 * x.view(-1)).view(x.shape)


class Standardized(nn.BatchNorm2d):
    """In plain operations: torch holds the statistics constant in third derivatives."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        var, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
        weight, bias = self.weight.view(1, -1, 1, 1), self.bias.view(1, -1, 1, 1)
        return weight * (x - mean) * (var + self.eps).rsqrt() + bias


class Chain(nn.Module):
    """Three convolutions with ReLU, BatchNorm before it if asked for, and something of the user's between them."""

    def __init__(self, settings: dict[str, object], what: str = "", norm: bool = False) -> None:
        super().__init__()
        self.what, self.shapes = what, []
        sizes = (3, 4, 5, 2)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, (3, 2), **settings) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) if norm else nn.Identity() for n in sizes[1:3])
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_(draw(*p.shape, seed=10 + i))
        self.double()

    def seen(self, g: torch.Tensor) -> None:
        self.shapes.append(g.view(-1).shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = self.convs
        z = made = first(x)
        if self.what == "hook before":
            z.register_hook(self.seen)
        z = normalized = self.norms[0](Doubled.apply(z) if self.what == "function" else z)
        if self.what == "hook between":
            z.register_hook(self.seen)
        y = F.relu(z)
        if self.what == "view":
            y = y.view(len(y), -1).view(y.shape)
        z = second(y) if self.what != "checkpoint" else checkpoint(second, y, use_reentrant=False)
        if self.what == "hook after":
            y.register_hook(self.seen)
        y = F.relu(self.norms[1](z))
        if self.what == "read twice":
            return torch.cat([third(y).flatten(1), y.view(len(y), -1).sin()], 1)
        if self.what == "late hook":
            made.register_hook(self.seen)
        if self.what == "late hook between":
            normalized.register_hook(self.seen)
        return third(y)


def derivatives(call: Callable[[torch.Tensor], torch.Tensor], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """Of three orders, the third by the weights alone."""
    x = leaves[0]
    found = [*torch.autograd.grad(call(x).sin().sum(), leaves, create_graph=True)]
    along = [draw(*t.shape, seed=3 + i).detach() for i, t in enumerate(leaves)]
    plain = torch.autograd.grad(found, leaves, along, retain_graph=True)
    second = torch.autograd.grad(found, leaves, along, create_graph=True)
    third = torch.autograd.grad(sum((t * t).sum() for t in second), leaves)
    return [*found, *plain, *second, *third]


@contextmanager
def plainly(*modules: nn.Module) -> Iterator[None]:
    """Inside, their BatchNorm is `Standardized`."""
    norms = [m for module in modules for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.__class__ = Standardized
    yield
    for norm in norms:
        norm.__class__ = nn.BatchNorm2d


HOOKS = ("hook before", "hook between", "hook after", "late hook", "late hook between")


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "normalized"])
@pytest.mark.parametrize("what", ["", *HOOKS, "view", "function", "read twice", "checkpoint"])
@pytest.mark.parametrize("settings", [FEW, MANY, PADDED], ids=["few", "many", "padded"])
def test_a_chain_has_torchs_derivatives(settings, what, norm):
    model = Chain(settings, what, norm)
    leaves = [draw(2, 3, 18, 13), *model.parameters()]
    with plainly(model):
        expected = derivatives(model, leaves)
    hooked = len(model.shapes)
    assert bool(hooked) is (what in HOOKS)
    with fast_second_derivatives():
        found = derivatives(model, leaves)
    assert len(model.shapes) == 2 * hooked
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def kept(y: torch.Tensor) -> list[object]:
    """The nodes of ReLU and BatchNorm behind a chain's output, the last one first."""
    found, node = [], y.grad_fn
    while node is not None:
        if hasattr(node, "ordered"):
            found.append(node)
        node = node.next_functions[0][0] if node.next_functions else None
    return found


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "normalized"])
@pytest.mark.parametrize("what", ["", "view", "function", *HOOKS])
def test_derivatives_go_on_with_channels_last_where_nobody_else_sees_them(what, norm):
    model = Chain(FEW, what, norm)
    with fast_second_derivatives():
        y = model(draw(2, 3, 18, 17).detach())
        torch.autograd.grad(y.sum(), list(model.parameters()), create_graph=True)
    # Of the last layers first: ReLU and BatchNorm before the third convolution, then those before the second.
    layers = 2 if norm else 1
    assert [node.ordered is not None for node in kept(y)] == [True] * layers + [what == ""] * layers
    assert y.is_contiguous()


def test_under_checkpointing_nothing_is_kept():
    images = []
    model = Chain(FEW, norm=True)
    with fast_second_derivatives():
        for run in (model, lambda x: checkpoint(model, x, use_reentrant=False)):
            y = run(draw(2, 3, 18, 17).detach())
            torch.autograd.grad(y.sum(), list(model.parameters()), create_graph=True)
            images.append(y.grad_fn.image)
    assert isinstance(images[0], ChannelsLast)
    assert images[1] is None
    assert [node.ordered for node in kept(y)] == [None] * 4


def test_a_checkpointed_norm_between_convolutions_keeps_nothing():
    first, norm, second = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3)
    parameters = [*first.parameters(), *norm.parameters(), *second.parameters()]
    for between in (
        lambda z: checkpoint(lambda z: F.relu(norm(z)), z, use_reentrant=False),
        lambda z: F.relu(checkpoint(norm, z, use_reentrant=False)),
    ):
        with fast_second_derivatives():
            y = second(between(first(torch.ones(2, 3, 9, 8))))
            torch.autograd.grad(y.sum(), parameters, create_graph=True)
        assert [node.ordered for node in kept(y)] == [None] * 2


def test_what_only_its_first_layers_are_checkpointed_of_has_torchs_derivatives():
    first, norm, second = nn.Conv2d(3, 4, 3).double(), nn.BatchNorm2d(4).double(), nn.Conv2d(4, 2, 3).double()
    leaves = [draw(2, 3, 9, 8), *first.parameters(), *norm.parameters(), *second.parameters()]

    def begun(x: torch.Tensor) -> torch.Tensor:
        return F.relu(norm(first(x)))

    with plainly(norm):
        expected = derivatives(lambda x: second(begun(x)), leaves)
    with fast_second_derivatives():
        found = derivatives(lambda x: second(checkpoint(begun, x, use_reentrant=False)), leaves)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_patches_are_kept_where_they_are_few():
    x, weight = draw(2, 3, 9, 8).detach(), draw(4, 3, 3, 3).detach()
    few, many = ([2, 2], [1, 1], [1, 1], False, [0, 0], 1), ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    for settings, made in ((few, True), (many, False)):
        found = image(x, weight.shape, settings)
        y = found.by(weight, None)
        found.by_weight(torch.ones_like(y))
        assert (found._patches is not None) is made
        torch.testing.assert_close(found.by(weight, None), y)


@pytest.mark.parametrize(("shape", "groups"), [((2, 1, 5, 5), 1), ((2, 4, 5, 5), 2), ((2, 4, 5), 1), ((0, 3, 5, 5), 1)])
def test_other_inputs_stay_as_they_are(shape, groups):
    x = torch.zeros(shape)
    settings = ([2, 2], [0, 0], [1, 1], False, [0, 0], groups)
    found = image(x, torch.Size([4, shape[1], 3, 3]), settings)
    assert type(found) is Image
    assert found.x is x


@pytest.mark.parametrize(("stride", "padding"), [((1, 2), (1, 0)), ((2, 2), (1, 2)), ((2, 1), (1, 0))])
def test_a_side_of_length_one_may_have_any_stride_in_memory(stride, padding):
    x = draw(3, 13, 4).detach().transpose(1, 2).unsqueeze(-1).transpose(2, 3)
    assert x.shape == (3, 4, 1, 13)
    assert x.stride(2) == 1
    leaves = [x.requires_grad_(), draw(5, 4, 3, 1)]
    expected = derivatives(lambda x: F.conv2d(x, leaves[1], None, stride, padding), leaves)
    with fast_second_derivatives():
        found = derivatives(lambda x: F.conv2d(x, leaves[1], None, stride, padding), leaves)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("norm", [nn.Identity(), nn.BatchNorm2d(4)], ids=["plain", "normalized"])
def test_nothing_is_left_of_a_graph_that_was_let_go_of(order, groups, norm):
    first, second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, groups=groups)
    leaves = [*first.parameters(), *second.parameters()]
    with fast_second_derivatives():
        inside = F.relu(norm(first(torch.ones(2, 3, 9, 9).contiguous(memory_format=order))))
        found = torch.autograd.grad(second(inside).sin().sum(), leaves, create_graph=True)
        torch.autograd.grad(found, leaves, [torch.ones_like(p) for p in leaves])
    assert inside.grad_fn.ordered is not None
    left = weakref.ref(inside)
    ordered = weakref.ref(inside.grad_fn.ordered)
    del inside, found
    assert left() is None
    assert ordered() is None


class Explained(nn.Module):
    """Its forward takes the gradient with respect to what lies between its convolutions, and views it."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.by, self.first, self.second = by, nn.Conv2d(3, 4, 3), nn.Conv2d(4, 1, 3, stride=2)
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_(draw(*p.shape, seed=20 + i))
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            before = self.first(x)
            after = F.relu(before)
            y = self.second(after).tanh().flatten(1)
            (slope,) = torch.autograd.grad(y.sum(), before if self.by == "before" else after, create_graph=True)
        return y.mean(1, keepdim=True) + slope.view(len(x), -1).sin().mean(1, keepdim=True)


@pytest.mark.parametrize("by", ["before", "after"])
def test_a_forward_that_takes_gradients_gets_them_in_the_usual_order(by):
    model, x, y = Explained(by), draw(3, 3, 7, 7).detach(), draw(3, 1, seed=1).detach()
    leaves = list(model.parameters())
    slopes = torch.autograd.grad(half_mse(model(x), y), leaves, create_graph=True)
    rows = (torch.autograd.grad(s, leaves, retain_graph=True) for s in torch.cat([t.flatten() for t in slopes]))
    values = torch.linalg.eigvalsh(torch.stack([torch.cat([t.flatten() for t in row]) for row in rows]))
    found = measure(model, half_mse, (x, y), solver=Solver(tol=1e-9, max_products=200), hessian=True)
    assert found.hessian_max == pytest.approx(float(values[-1]), rel=1e-8)
    assert found.hessian_min == pytest.approx(float(values[0]), rel=1e-8)


@pytest.mark.parametrize("settings", [{}, FEW, MANY, PADDED], ids=["plain", "few", "many", "padded"])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 2)])
def test_small_images_in_float64_are_torchs(settings, kernel):
    x, weight, bias = draw(3, 4, 9, 8), draw(5, 4, *kernel, seed=1), draw(5, seed=2)
    full = [settings.get(key, default) for key, default in (("stride", 1), ("padding", 0), ("dilation", 1))]
    sizes = [[n] * 2 if isinstance(n, int) else list(n) for n in full]
    for b in (None, bias):
        found = convolved(x, weight, b, (*sizes, False, [0, 0], 1))
        torch.testing.assert_close(found, F.conv2d(x, weight, b, **settings))
        assert found.is_contiguous()
