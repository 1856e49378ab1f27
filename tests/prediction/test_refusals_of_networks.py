"""Networks whose graph does not say what they do: each is refused by name, never answered with a wrong number."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import normscope as ns
from normscope.prediction import UnknownOperation

N = 60


class Forward(nn.Module):
    """Three linear layers in the forward of a test."""

    def __init__(self, forward: Callable[[nn.Module, Tensor], Tensor], **modules: nn.Module) -> None:
        super().__init__()
        self.run = forward
        self.a, self.c, self.b = nn.Linear(20, N), nn.Linear(N, N), nn.Linear(N, 5)
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def rectified_and_dropped(net, x):
    h = net.a(x)
    F.relu_(h)
    return net.b(h)


def rectified_by_torch(net, x):
    h = net.a(x)
    torch.relu_(h)
    return net.b(h)


def module_as_a_statement(net, x):
    h = net.a(x)
    net.act(h)
    return net.b(h)


def read_after_a_module(net, x):
    h = net.a(x)
    y = net.act(h)
    return net.b(net.c(y) + h)


def read_after_a_flag(net, x):
    h = net.a(x)
    y = F.relu(h, True)
    return net.b(net.c(y) + h)


def read_after_an_operator(net, x):
    h = net.a(x)
    i = h
    h += net.c(torch.relu(h))
    return net.b(torch.relu(net.c(h)) + i)


def read_through_a_view(net, x):
    h = net.a(x)
    y = h.view(-1, N).relu_()
    return net.b(net.c(y) + h)


def items_set(net, x):
    h = net.a(x)
    h[:, :30] = 0
    return net.b(h)


@pytest.mark.parametrize(
    "forward",
    [
        rectified_and_dropped,
        rectified_by_torch,
        module_as_a_statement,
        read_after_a_module,
        read_after_a_flag,
        read_after_an_operator,
        read_through_a_view,
        items_set,
    ],
)
def test_changes_in_place_that_somebody_else_sees(forward):
    with pytest.raises(UnknownOperation, match="in place.*ns.measure"):
        ns.predict(Forward(forward, act=nn.ReLU(inplace=True)), (20,))


def test_changes_in_place_that_nobody_else_sees():
    plain = nn.Sequential(nn.Linear(20, N), nn.ReLU(), nn.Linear(N, 5))
    inplace = nn.Sequential(plain[0], nn.ReLU(inplace=True), plain[2])
    assert ns.predict(inplace, (20,)).lambda_max == ns.predict(plain, (20,)).lambda_max


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore")
def test_weights_computed_from_other_parameters(wrap):
    with pytest.raises(UnknownOperation, match="'0'.*Linear.*(parametrization|hooks)"):
        ns.predict(nn.Sequential(wrap(nn.Linear(20, N)), nn.ReLU(), nn.Linear(N, 5)), (20,))


def test_hooks():
    net = nn.Sequential(nn.Linear(20, N), nn.ReLU(), nn.Linear(N, 5))
    net[2].register_forward_hook(lambda module, args, out: 10 * out)
    with pytest.raises(UnknownOperation, match="'2'.*forward hooks.*Remove them"):
        ns.predict(net, (20,))


def without_gradients(net, x):
    with torch.no_grad():
        h = torch.tanh(net.a(x))
    return net.b(torch.tanh(net.c(h)))


def without_gradients_by_export(net, x):
    if x.shape[0] < 2:
        return net.b(net.a(x))
    return without_gradients(net, x)


@pytest.mark.parametrize("forward", [without_gradients, without_gradients_by_export])
def test_gradients_turned_off_inside(forward):
    with pytest.raises(UnknownOperation, match=r"torch.no_grad|set_grad_enabled"):
        ns.predict(Forward(forward), (20,), batch_size=16)


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (nn.LayerNorm(50), (N,), "'1'.*last dimension of 50 and gets 60"),
        (nn.RMSNorm(50), (N,), "'1'.*last dimension of 50 and gets 60"),
        (ns.norms.RMSNorm(50), (N,), "'1'.*takes 50 channels and gets 60"),
        (nn.GroupNorm(4, 64), (128, 6, 6), "'1'.*takes 64 channels and gets 128"),
        (nn.BatchNorm1d(64), (64, 6, 6), "'1'.*takes 2 or 3 dimensions"),
        (nn.BatchNorm2d(N), (N,), "'1'.*takes 4 dimensions"),
        (nn.BatchNorm2d(64), (128, 6, 6), "'1'.*takes 64 channels and gets 128"),
        (nn.RMSNorm(6), (64, 6, 6), "'1'.*last dimensions of images"),
        (nn.PReLU(7), (N,), "'1'.*takes 7 channels and gets 60"),
        (nn.Conv2d(64, 64, 3, stride=0), (64, 6, 6), "'1'.*stride or dilation below 1"),
        (nn.Conv2d(64, 64, 3, padding=-1), (64, 6, 6), "'1'.*padding below 0"),
        (nn.AvgPool2d(3, padding=2), (64, 6, 6), "'1'.*more than half of its window of 3x3"),
        (nn.MaxPool2d(3, padding=2), (64, 40, 40), "'1'.*more than half of its window of 3x3"),
    ],
)
def test_sizes_that_torch_refuses(layer, shape, words):
    first = nn.Linear(20, N) if len(shape) == 1 else nn.Conv2d(3, shape[0], 1)
    with pytest.raises(ValueError, match=words):
        ns.predict(nn.Sequential(first, layer), (20,) if len(shape) == 1 else (3, *shape[1:]))


def test_division_by_zero():
    with pytest.raises(ValueError, match="'truediv'.*divides by zero"):
        ns.predict(Forward(lambda net, x: net.b(net.a(x) / 0)), (20,))


@pytest.mark.parametrize(
    ("last", "words"), [(nn.ReLU(), "'3' .relu"), (nn.BatchNorm1d(5), "'3' .BatchNorm"), (nn.Tanh(), "'3' .tanh")]
)
def test_outputs_that_no_linear_map_makes(last, words):
    with pytest.raises(ValueError, match=f"comes out of {words}"):
        ns.predict(nn.Sequential(nn.Linear(20, N), nn.ReLU(), nn.Linear(N, 5), last), (20,))


@pytest.mark.parametrize("broken", ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight"])
def test_parameters_that_are_not_finite(broken):
    net = nn.Sequential(nn.Linear(20, N), nn.BatchNorm1d(N), nn.ReLU(), nn.Linear(N, 5))
    net.get_parameter(broken).data.view(-1)[0] = math.nan
    with pytest.raises(ValueError, match=f"'{broken[0]}'.*not finite"):
        ns.predict(net, (20,))


@pytest.mark.slow
def test_numbers_beyond_double_precision():
    net = ns.models.MLP(20, 5, width=30, depth=2200, norm="batch")
    with pytest.raises(ValueError, match="range of double precision"):
        ns.predict(net, (20,))
    assert ns.predict(ns.models.MLP(20, 5, width=30, depth=1500, norm="layer"), (20,)).lambda_max < 1e3


@pytest.mark.parametrize("act", [nn.Tanh(), nn.GELU(), nn.ReLU(), nn.SiLU()])
@pytest.mark.parametrize("bias", [False, True])
def test_weights_of_zero(act, bias):
    net = nn.Sequential(nn.Linear(20, N, bias=bias), act, nn.Linear(N, 5, bias=bias))
    for p in net.parameters():
        nn.init.zeros_(p)
    found = ns.predict(net, (20,), "half_mse")
    assert math.isfinite(found.data_mode)
    assert found.lambda_max == pytest.approx(1.0 if bias else 0.0, abs=1e-12)
    assert bias or found.lambda_max == 0
    for lr in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="positive number"):
            found.verdict(lr)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_mode_of_gradients_outside_changes_nothing(mode):
    net = nn.Sequential(nn.Linear(20, N), nn.BatchNorm1d(N), nn.Tanh(), nn.Linear(N, 5))
    x = torch.randn(64, 20)
    answers = [ns.predict(net, (20,), batch_size=64).to_json(), ns.predict(net, (20,), batch=x).to_json()]
    with mode():
        assert [ns.predict(net, (20,), batch_size=64).to_json(), ns.predict(net, (20,), batch=x).to_json()] == answers


def test_one_layer_twice_on_one_tensor_is_twice_its_values():
    twice = Forward(lambda net, x: net.b(torch.relu(net.c(net.a(x)) + net.c(net.a(x)))))
    scaled = Forward(lambda net, x: net.b(torch.relu(2 * net.c(net.a(x)))))
    scaled.load_state_dict(twice.state_dict())
    assert ns.predict(twice, (20,)).lambda_max == ns.predict(scaled, (20,)).lambda_max


def test_no_name_of_a_layer_matters():
    names = ("input", "first")
    nets = [
        Forward(lambda net, x, n=n: net.b(torch.tanh(getattr(net, n)(x) + x)), **{n: nn.Linear(N, N)}) for n in names
    ]
    nets[1].load_state_dict({k.replace("input", "first"): v for k, v in nets[0].state_dict().items()})
    one, two = (ns.predict(net, (N,)) for net in nets)
    assert one.lambda_max == two.lambda_max


class Tracks(nn.Module):
    """A forward that leaves traces: a constant, a random number, a counter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(20, 5)
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        torch.rand(())
        return self.linear(x) * torch.tensor(2.0)


def test_reading_the_graph_leaves_no_traces():
    net = Tracks()
    before, state = set(vars(net)), torch.get_rng_state()
    ns.predict(net, (20,))
    assert set(vars(net)) == before
    assert (net.calls, float(net.seen)) == (0, 0.0)
    assert torch.equal(torch.get_rng_state(), state)
