"""The same network in other words gives the same answer; what changes the answer is measured."""

import pytest
import torch
from networks import Forward
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns


def lam(model: nn.Module, shape: tuple[int, ...], **options: object) -> float:
    return ns.predict(model, shape, "half_mse", 32, **options).lambda_max


@pytest.mark.parametrize("kind", [nn.SiLU, nn.Hardswish, nn.ELU, nn.ReLU6, nn.SELU, nn.CELU, nn.Mish, nn.Hardtanh])
def test_activations_in_place(kind):
    a, b = nn.Linear(20, 60), nn.Linear(60, 5)
    plain, inplace = (nn.Sequential(a, kind(inplace=flag), b) for flag in (False, True))
    assert lam(inplace, (20,)) == pytest.approx(lam(plain, (20,)), rel=1e-13)


@pytest.mark.parametrize(
    "end",
    [
        lambda h: h.mean(3).mean(2),
        lambda h: h.mean(-1).mean(-1),
        lambda h: h.mean(2).mean(2),
        lambda h: h.mean(axis=(2, 3)),
        lambda h: h.mean(2, keepdim=True).mean(3, keepdim=True).flatten(1),
        lambda h: F.adaptive_avg_pool2d(h, 1).squeeze(-1).squeeze(-1),
    ],
)
@pytest.mark.parametrize("size", [6, 30])
def test_means_over_the_image(end, size):
    """30x30 sites are described by offsets, 6x6 by pairs."""
    conv, last = nn.Conv2d(3, 40, 3, padding=1), nn.Linear(40, 5)
    nets = [Forward(lambda net, x, e=e: net.b(e(torch.tanh(net.c(x)))), c=conv, b=last) for e in (_at_once, end)]
    assert lam(nets[1], (3, size, size)) == pytest.approx(lam(nets[0], (3, size, size)), rel=1e-9)


def _at_once(h: Tensor) -> Tensor:
    return h.mean((2, 3))


def measured(net: nn.Module, x: Tensor) -> float:
    return ns.measure(net, ns.losses.half_mse, (x, torch.zeros(len(x), 5)), hessian=False).lambda_max


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: net.b(torch.relu(net.k(torch.relu(net.one(x)))).mean((2, 3))),
        lambda net, x: net.b(torch.relu(net.k(net.same(x) + x)).mean((2, 3))),
        lambda net, x: net.b(torch.relu(net.cat(torch.cat([net.same(x), x], 1))).mean((2, 3))),
    ],
    ids=["1x1 first", "skip from the input", "concatenated with the input"],
)
def test_small_input_images(forward):
    torch.manual_seed(0)
    layers = {"one": nn.Conv2d(8, 8, 1), "same": nn.Conv2d(8, 8, 3, padding=1), "k": nn.Conv2d(8, 64, 3, padding=1)}
    net = Forward(forward, **layers, cat=nn.Conv2d(16, 64, 3, padding=1), b=nn.Linear(64, 5))
    assert lam(net, (8, 6, 6)) == pytest.approx(measured(net, images(32, 8, 6, 6)), rel=0.15)


def test_a_flattened_image_plus_features_is_refused():
    net = Forward(lambda net, x: net.b(x.flatten(1) + net.a(x.flatten(1))), a=nn.Linear(48, 48), b=nn.Linear(48, 5))
    with pytest.raises(ValueError, match="adds a flattened image of 16 sites"):
        ns.predict(net, (3, 4, 4))


def test_weights_used_three_times():
    net = Forward(
        lambda net, x: net.b(net.c(torch.relu(net.c(torch.relu(net.c(net.a(x)))))) + net.a(x)),
        a=nn.Linear(20, 60), c=nn.Linear(60, 60), b=nn.Linear(60, 5),
    )  # fmt: skip
    found = ns.predict(net, (20,))
    assert sum(row["layer"] == "c" for row in found.layers) == 3
    double = Forward(
        lambda net, x: (lambda h: net.b(net.c(torch.relu(net.c(torch.relu(h)))) + net.c(torch.relu(h))))(net.a(x)),
        a=nn.Linear(20, 60), c=nn.Linear(60, 60), b=nn.Linear(60, 5),
    )  # fmt: skip
    assert ns.predict(double, (20,)).lambda_max > 0


def test_two_weights_of_one_module():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ws = nn.ParameterList([torch.randn(60, 20) / 20**0.5, torch.randn(60, 20) / 20**0.5])
            self.b = nn.Linear(60, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.relu(F.linear(x, self.ws[0])) + F.linear(x, self.ws[1]))

    names = [row["layer"] for row in ns.predict(Pair(), (20,)).layers]
    assert names == ["ws.0", "ws.1", "b"]


@pytest.mark.parametrize("kind", [nn.MaxPool2d(3, 1, dilation=2)])
def test_dilated_maxima_are_refused(kind):
    for size in (8, 40):
        net = nn.Sequential(nn.Conv2d(3, 40, 3), nn.ReLU(), kind, nn.Flatten(), nn.LazyLinear(5))
        net(torch.zeros(1, 3, size, size))
        with pytest.raises(ValueError, match="'2'.*dilated windows"):
            ns.predict(net, (3, size, size))


def test_trained_numbers_are_refused_and_frozen_ones_are_constants():
    alpha = nn.Parameter(torch.tensor(0.05))
    net = Forward(
        lambda net, x: net.b(F.relu(net.a(x))) * net.alpha, a=nn.Linear(20, 60), alpha=alpha, b=nn.Linear(60, 5)
    )
    with pytest.raises(ValueError, match="trained number.*parameters="):
        ns.predict(net, (20,), "half_mse")
    frozen = ns.predict(net, (20,), "half_mse", parameters=lambda name, p: name != "alpha").lambda_max
    assert frozen == pytest.approx(0.05**2 * lam(nn.Sequential(net.a, nn.ReLU(), net.b), (20,)), rel=0.1)
    net = Forward(lambda net, x: F.linear(x, net.w * 2), w=nn.Parameter(torch.randn(5, 20)))
    with pytest.raises(ValueError, match="computed from parameters"):
        ns.predict(net, (20,), "half_mse")


def _calibrated(layers: int, steps: int, momentum: float | None, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    width = 200
    stack: list[nn.Module] = []
    for i in range(layers):
        stack += [nn.Linear(50 if i == 0 else width, width), nn.BatchNorm1d(width, momentum=momentum), nn.ReLU()]
    net = nn.Sequential(*stack, nn.Linear(width, 5))
    with torch.no_grad():
        for _ in range(steps):
            net(torch.randn(256, 50))
    return net.eval()


@pytest.mark.parametrize(("layers", "steps", "momentum"), [(1, 10, None), (3, 10, None), (2, 5, 0.1)])
def test_running_statistics_of_real_data(layers, steps, momentum):
    """Taken as independent of the inputs, running means gave answers 2.5 to 4.8 times off."""
    nets = [_calibrated(layers, steps, momentum, seed) for seed in range(2)]
    predicted = sum(lam(net, (50,)) for net in nets)
    assert predicted == pytest.approx(sum(measured(net, images(32, 50)) for net in nets), rel=0.15)


def test_running_statistics_of_other_data_are_refused():
    net = _calibrated(2, 10, None, 0)
    net[1].running_mean += 3.0
    with pytest.raises(ValueError, match="'1'.*running means of mean square.*batch="):
        ns.predict(net, (50,))


def test_a_large_batch_costs_export_no_memory():
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.f = nn.Conv2d(3, 40, 3), nn.Linear(40, 5)

        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] > 1:
                x = F.relu(self.c(x))
            return self.f(x.mean((2, 3)))

    found = ns.predict(Sized(), (3, 64, 64), batch_size=10**8)
    assert found.batch_size == 10**8
