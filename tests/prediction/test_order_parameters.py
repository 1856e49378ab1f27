"""Every order parameter of every layer against random networks.

The means over networks, measured and predicted (for every fifth network's variances), must agree within 4
standard errors (false alarms: 1 in 16,000 for each number) plus a term for finite width, 5 / narrowest width of the
number's scale (qh, q or qt of the layer). The largest term seen is that of the squared gradient as trained below
average pooling, 8 to 12 % at widths 48 to 96.
"""

import statistics

import pytest
import torch
from networks import PostResNet, preact_resnet, residual_mlp, vgg_like, with_activation
from order_parameters import measured
from torch import nn

import normscope as ns

BOTH = ("batch", "frozen")
NUMBERS = ("qh", "qh_xy", "q", "q_xy", "qt", "qt_xy")


def mlp(seed: int, norm: str, act: type[nn.Module]) -> nn.Module:
    return with_activation(ns.models.MLP(50, 3, width=200, norm=norm, seed=seed), act)


def cnn(seed: int, norm: str, act: type[nn.Module]) -> nn.Module:
    return with_activation(ns.models.CNN(3, 16, 3, channels=(60, 60, 60), padding=1, norm=norm, seed=seed), act)


def vgg(seed: int, norm: str, act: type[nn.Module]) -> nn.Module:
    return vgg_like(seed, width=64, norm=norm, act=act, d_out=3)


def resnet(seed: int, norm: str, act: type[nn.Module]) -> nn.Module:
    """The models' own calls relu by name; other activations take one of four blocks."""
    if act is nn.ReLU:
        return ns.models.PreActResNet18(3, 3, width=32, norm=norm, seed=seed)
    return preact_resnet(seed, width=32, norm=norm, act=act)


def post_mlp(seed: int, norm: str, act: type[nn.Module]) -> nn.Module:
    """BatchNorm and ReLU alone, as the next."""
    return residual_mlp(seed, width=200, blocks=3)


def post_resnet(seed: int, norm: str, act: type[nn.Module]) -> nn.Module:
    return PostResNet(seed, width=32, d_out=3)


NETWORKS = {
    "mlp": (mlp, (50,), 32, 200),
    "cnn": (cnn, (3, 16, 16), 16, 60),
    "vgg": (vgg, (3, 8, 8), 16, 64),
    "resnet": (resnet, (3, 8, 8), 16, 32),
    "post mlp": (post_mlp, (200,), 64, 200),
    "post resnet": (post_resnet, (3, 8, 8), 16, 32),
}


def check(
    name: str, norm: str, act: type[nn.Module], readings: tuple[str, ...], networks: int, term: float = 5
) -> None:
    """Every network is drawn once and read in all ways."""
    make, shape, m, width = NETWORKS[name]
    seen: dict[tuple[str, str, str], list[float]] = {}
    said: dict[tuple[str, str, str], list[float]] = {}
    for seed in range(networks):
        net = make(seed, norm, act)
        x = torch.randn(m, *shape, generator=torch.Generator().manual_seed(1000 + seed))
        for stats in readings:
            if seed % 5 == 0:
                for row in ns.predict(net, shape, batch_size=m, stats=stats).layers:
                    for number in NUMBERS:
                        said.setdefault((stats, row["layer"], number), []).append(row.get(number, 0.0))
            for layer, found in measured(net, x, stats).items():
                for number in NUMBERS:
                    seen.setdefault((stats, layer, number), []).append(found[number])
    assert seen
    for (stats, layer, number), values in seen.items():
        theory = said[stats, layer, number]
        # The variances of each network's own weights are in its prediction, so both means have an error.
        error = sum(statistics.variance(v) / len(v) for v in (values, theory)) ** 0.5
        size = abs(statistics.mean(said[stats, layer, number.removesuffix("_xy")]))
        off = statistics.mean(values) - statistics.mean(theory)
        assert abs(off) < 4 * error + term / width * size, (
            stats,
            layer,
            number,
            statistics.mean(values),
            statistics.mean(theory),
        )


@pytest.mark.parametrize("name", ["mlp", "cnn", "post mlp"])
def test_order_parameters_of_a_few_networks(name):
    check(name, "batch", nn.ReLU, BOTH, 15)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("act", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("name", ["mlp", "cnn", "vgg", "resnet"])
def test_order_parameters_of_a_hundred_networks(name, act, norm):
    check(name, norm, act, BOTH if norm == "batch" else BOTH[:1], 100)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["post mlp", "post resnet"])
def test_order_parameters_after_sums_of_a_hundred_networks(name):
    """Twice the term for widths: of five blocks the first layer's gradients are 15 % off at width 100, 8 % at 200."""
    check(name, "batch", nn.ReLU, BOTH, 100, term=10 if name == "post mlp" else 5)
