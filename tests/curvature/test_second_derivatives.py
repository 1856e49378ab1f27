"""Second derivatives of our own convolutions and normalizations: against differences, and against torch's."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from normscope import losses
from normscope.curvature import Network
from normscope.curvature.autograd.patching import fast_second_derivatives
from normscope.isolation.lending import untouched
from normscope.norms import BatchNorm2d

FUNCTIONS = {1: "conv1d", 2: "conv2d", 3: "conv3d"}
SETTINGS = [
    {},
    {"stride": 2},
    {"padding": 1, "groups": 2},
    {"stride": 2, "padding": 2, "dilation": 2},
    {"stride": 3, "padding": 1, "groups": 4},
]


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def operands(space: int, groups: int) -> tuple[torch.Tensor, ...]:
    sides, kernel = (7, 6, 5)[:space], (3, 2, 2)[:space]
    return draw(2, 4, *sides), draw(4, 4 // groups, *kernel, seed=1), draw(4, seed=2)


def by_hand(name: str, *tensors: torch.Tensor, **settings: int) -> list[torch.Tensor]:
    """All first and second derivatives of a loss that bends; with names in torch as they are now."""
    y = getattr(F, name)(*tensors, **settings)
    leaves = [t for t in tensors if t is not None]
    first = torch.autograd.grad(y.sin().sum(), leaves, create_graph=True)
    along = [draw(*t.shape, seed=3 + i).detach() for i, t in enumerate(leaves)]
    return [y, *first, *torch.autograd.grad(first, leaves, along)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("space", FUNCTIONS)
def test_convolutions_have_torchs_derivatives(space, settings, bias):
    tensors = operands(space, settings.get("groups", 1))
    tensors = tensors if bias else (*tensors[:2], None)
    expected = by_hand(FUNCTIONS[space], *tensors, **settings)
    with fast_second_derivatives():
        found = by_hand(FUNCTIONS[space], *tensors, **settings)
    assert "_Convolution" in type(found[0].grad_fn).__name__
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("space", FUNCTIONS)
def test_convolutions_pass_torchs_checks(space):
    settings = {"stride": 2, "padding": 1, "groups": 2}
    with fast_second_derivatives():

        def call(*tensors: torch.Tensor) -> torch.Tensor:
            return getattr(torch, FUNCTIONS[space])(*tensors, **settings)

        few = {"atol": 1e-6, "fast_mode": True}
        assert gradcheck(call, operands(space, 2), **few)
        assert gradgradcheck(call, operands(space, 2), **few)


def test_derivatives_not_asked_for_are_left_out():
    x, weight, bias = operands(2, 1)
    with fast_second_derivatives():
        y = F.conv2d(x.detach(), weight, bias.detach())
        (first,) = torch.autograd.grad(y.square().sum(), weight, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), weight)
    patches = F.unfold(x.detach(), (3, 2)).transpose(1, 2).reshape(-1, 24)
    torch.testing.assert_close(second.view(4, 24), (2 * patches.T @ patches).sum(0).expand(4, 24))


def test_what_is_not_ours_is_torchs():
    x, weight, bias = draw(2, 4, 5, 5), draw(4, 4, 3, 3, seed=1), draw(4, seed=2)
    same, alone = F.conv2d(x, weight, bias, padding="same"), F.conv2d(x[0], weight, bias)
    with fast_second_derivatives():
        assert torch.equal(F.conv2d(x, weight, bias, padding="same"), same)
        assert torch.equal(F.conv2d(x[0], weight, bias), alone)
        with torch.no_grad(), forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(F.conv2d(forward_ad.make_dual(x, x), weight)).tangent
            torch.testing.assert_close(tangent, F.conv2d(x, weight))


def test_names_are_torchs_again_whatever_happens():
    names = [torch.conv2d, F.conv2d, torch.conv1d, F.conv3d, torch.batch_norm]
    with pytest.raises(RuntimeError, match="channels"), fast_second_derivatives():
        F.conv2d(torch.zeros(1, 2, 3, 3), torch.zeros(1, 1, 1, 1))
    assert [torch.conv2d, F.conv2d, torch.conv1d, F.conv3d, torch.batch_norm] == names


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("smallest", [None, 0.0, 1e-9, 1e-40])
def test_batch_norm_has_torchs_derivatives(training, affine, form, smallest):
    x = (5.0 + draw(4, 3, 3, 2).detach()).to(memory_format=form).requires_grad_()
    layer = nn.BatchNorm2d(3, affine=affine, eps=0.1).double()
    ours = BatchNorm2d(3, affine=affine, eps=0.1).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(draw(3, seed=7))
        if affine and smallest is not None:
            layer.weight[1] = smallest
    layer(x)
    for other in (layer, ours):
        other.load_state_dict(layer.state_dict())
        other.train(training)

    def derivatives(layer: nn.Module) -> list[torch.Tensor]:
        leaves = [x, *layer.parameters()]
        first = torch.autograd.grad(layer(x).sin().sum(), leaves, create_graph=True)
        along = [draw(*t.shape, seed=3 + i).detach() for i, t in enumerate(leaves)]
        return [*first, *torch.autograd.grad(first, leaves, along)]

    expected = derivatives(layer)
    before = {name: t.clone() for name, t in layer.state_dict().items()}
    with fast_second_derivatives():
        found = [derivatives(layer), derivatives(ours)]
    for one in found:
        for a, b in zip(one, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    # Running statistics move as torch moves them.
    assert torch.equal(before["running_mean"], layer.running_mean) is not training


@pytest.mark.parametrize("call", [lambda x: torch.relu(x), F.relu, nn.ReLU()])
def test_relu_has_torchs_derivatives_of_every_order_and_writes_no_zeros(call):
    def derivatives() -> list[torch.Tensor]:
        x = draw(5, 7)
        found = [(call(x) ** 4 * x.cos()).sum()]
        for _ in range(3):
            found += torch.autograd.grad(found[-1].sum(), x, create_graph=True)
        return found

    expected = derivatives()
    with fast_second_derivatives():
        found = derivatives()
        x = draw(5, 7)
        (slope,) = torch.autograd.grad(F.relu(x).sin().sum(), x, create_graph=True)
        with torch.profiler.profile() as seen:
            torch.autograd.grad(slope.sum(), x)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert "aten::zeros_like" not in {event.key for event in seen.key_averages()}


@pytest.mark.parametrize("stats", ["batch", "running"])
def test_a_hessian_product_is_made_of_them(stats):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    x, y = torch.randn(5, 3, 8, 8), torch.randn(5, 2)
    with untouched(model) as lent:
        network = Network(lent, model, losses.half_mse, (x, y), stats=stats)
        with torch.profiler.profile() as seen:
            product = network.hessian()
            product(torch.randn(network.size))
    made = {event.key for event in seen.key_averages()}
    assert {"_ConvolutionGrad", "_ConvolutionGradBackward"} <= made
    assert ("BatchNormGradBackward" in made) is (stats == "batch")
    assert not any("BackwardBackward0" in key and ("Conv" in key or "BatchNorm" in key) for key in made)


def _first_and_second(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    leaves = [x, *model.parameters()]
    y = model(x)
    first = torch.autograd.grad(y.sin().sum(), leaves, create_graph=True)
    along = [draw(*t.shape, seed=3 + i).detach() for i, t in enumerate(leaves)]
    return [y.detach(), *first, *torch.autograd.grad(first, leaves, along)]


class Between(nn.Module):
    """A convolution and BatchNorm in eval mode, with something of the user's between them."""

    def __init__(self, what: str, bias: bool, affine: bool) -> None:
        super().__init__()
        self.what = what
        self.conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=bias)
        self.norm = nn.BatchNorm2d(6, affine=affine)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        if self.what == "written into":
            y += 0.1 * y.detach()
        if self.what == "hooked":
            y.register_hook(lambda g: 2 * g)
        if self.what == "clipped":
            y.detach().clamp_(-0.3, 0.3)
        if self.what == "scaled":
            with torch.no_grad():
                y *= 2
        if self.what == "checkpointed":
            return checkpoint(lambda t: self.norm(self.conv(t)), x, use_reentrant=False)
        return self.norm(y) * y if self.what == "read again" else self.norm(y)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("what", ["", "read again", "written into", "clipped", "scaled", "hooked", "checkpointed"])
def test_batch_norm_in_eval_mode_goes_into_the_weights_before_it(what, bias, affine):
    """With torch's derivatives, whatever else happens to the convolution's output."""
    model = Between(what, bias, affine).double()
    with torch.no_grad():
        for i, t in enumerate((*model.parameters(), model.norm.running_mean)):
            t.copy_(draw(*t.shape, seed=10 + i))
        model.norm.running_var.copy_(draw(6, seed=20).square() + 0.1)
    model.eval()
    x = draw(3, 4, 6, 5)
    expected = _first_and_second(model, x)
    with fast_second_derivatives():
        folded = "_Convolution" in type(model(x).grad_fn).__name__
        found = _first_and_second(model, x)
    assert folded is (what == "")
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("stats", ["batch", "frozen", "running"])
def test_batch_norm_is_called_by_the_names_of_its_arguments_too(stats):
    layer = nn.BatchNorm1d(2).double()

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(3, 2).double(), layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            statistics = {"running_mean": layer.running_mean, "running_var": layer.running_var}
            rest = {"training": self.training, "momentum": 0.1, "eps": layer.eps, "cudnn_enabled": False}
            return torch.batch_norm(input=self.linear(x), weight=layer.weight, bias=layer.bias, **statistics, **rest)

    named = Named()
    x, y = draw(6, 3).detach(), draw(6, 2, seed=1).detach()
    products = []
    for model in (named, nn.Sequential(named.linear, layer)):
        with untouched(model) as lent:
            network = Network(lent, model, losses.half_mse, (x, y), stats=stats)
            products.append(network.product("hessian")(torch.ones(network.size, dtype=x.dtype)))
    torch.testing.assert_close(*products)


def test_statistics_that_are_held_stay_held_in_torchs_own_layers():
    """Frozen: against BatchNorm of torch operations with the batch's statistics as numbers."""
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(4)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.Tanh(), nn.Flatten(), nn.Linear(36, 2)).double()
    x, y = draw(6, 3, 5, 5).detach(), draw(6, 2, seed=1).detach()
    z = model[0](x).detach()
    mean, rate = z.mean((0, 2, 3)).view(-1, 1, 1), (z.var((0, 2, 3), correction=0) + layer.eps).rsqrt().view(-1, 1, 1)

    def loss(*theta: torch.Tensor) -> torch.Tensor:
        filters, offset, w, b, rows, bias = theta
        h = (F.conv2d(x, filters, offset) - mean) * rate * w.view(-1, 1, 1) + b.view(-1, 1, 1)
        return losses.half_mse(F.linear(h.tanh().flatten(1), rows, bias), y)

    theta = tuple(p.detach() for p in model.parameters())
    v = draw(sum(p.numel() for p in theta), seed=2).detach()
    parts = tuple(part.view_as(p) for part, p in zip(v.split([p.numel() for p in theta]), theta, strict=True))
    expected = torch.cat([part.flatten() for part in torch.autograd.functional.hvp(loss, theta, parts)[1]])
    with untouched(model) as lent:
        network = Network(lent, model, losses.half_mse, (x, y), stats="frozen")
        torch.testing.assert_close(network.product("hessian")(v), expected)
