"""Every product against a dense matrix by definition: central differences in float64 of a network written out.

The Hessian's twin differentiates gradients, the Gauss-Newton matrix's the outputs; both move the parameters, with the
statistics of the starting point held where they are said to be constant. The error of the differences is about 1e-9 of
the largest entry; no entry may be off by more than 1e-6 of it.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from twins import LOSSES, NETS, NORMS, OUTPUTS, Twin, data, dense, network, opened

import reference
from normscope import losses
from normscope.curvature import STATISTICS, Network
from normscope.curvature.autograd.forward_mode import fused
from normscope.isolation.lending import untouched
from normscope.norms import BatchNorm2d

CLOSE = 1e-6


def assert_entries(found: torch.Tensor, expected: np.ndarray, label: str, scale: float = 0.0) -> None:
    off = np.abs(found.numpy() - expected).max()
    assert off <= CLOSE * max(np.abs(expected).max(), scale), (label, off)


def _cases() -> list:
    """Slow: the deeper network, half of the convolutional ones, readings that layers without batch statistics share."""
    found = []
    for net in NETS:
        for norm in NORMS:
            for stats in STATISTICS:
                shared = norm in ("none", "layer", "group", "rms") and stats != "batch"
                second = net == "cnn" and norm not in ("torch", "noisy", "l2", "layer")
                slow = [pytest.mark.slow] if shared or second or net == "deep" else []
                found.append(pytest.param(net, norm, stats, marks=slow))
    return found


def _check(net: str, norm: str, stats: str, entries: dict[str, tuple[str, ...]]) -> None:
    """`entries` names the losses whose whole matrices are made; the others are held against two random vectors."""
    model = network(net, norm)
    x, y, labels = data(net)
    targets = {name: labels if name == "cross_entropy" else y for name in LOSSES}
    twin = Twin(model, norm, stats, x)
    f = twin.outputs(twin.theta)
    jacobian = reference.central_jacobian(twin.outputs, twin.theta)
    hessians = reference.central_jacobian(lambda theta: twin.gradients(theta, targets), twin.theta)
    some = torch.randn(2, twin.theta.size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for hessian, (name, target) in zip(hessians, targets.items(), strict=True):
        bend = reference.output_hessian(name, f.reshape(-1, OUTPUTS), y.numpy())
        expected = {"hessian": hessian, "gauss_newton": jacobian.T @ bend @ jacobian}
        with opened(model, LOSSES[name], (x, target), stats) as found:
            assert np.abs(found.output().detach().reshape(-1).numpy() - f).max() <= 1e-12 * np.abs(f).max()
            scale = float(found.gradient().abs().max())
            for matrix, by_definition in expected.items():
                product = getattr(found, matrix)()
                if name in entries[matrix]:
                    assert_entries(dense(product, found.size), by_definition, f"{matrix} {name}", scale)
                for v in some:
                    assert_entries(product(v), by_definition @ v.numpy(), f"{matrix} {name} v", scale)
            if name == "half_mse":
                vjp, jvp = found.vjp(found.output()), found.jvp()
                for v in some:
                    assert_entries(jvp(v).reshape(-1), jacobian @ v.numpy(), "jvp")
                for k in range(f.size):
                    unit = torch.eye(f.size, dtype=torch.float64)[k]
                    assert_entries(vjp(unit.view(-1, OUTPUTS)), jacobian[k], "vjp", scale)


@pytest.mark.parametrize(("net", "norm", "stats"), _cases())
def test_products_are_those_of_the_definition(net, norm, stats):
    _check(net, norm, stats, {"hessian": ("cross_entropy",), "gauss_newton": ("half_mse",)})


@pytest.mark.slow
@pytest.mark.parametrize("stats", STATISTICS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("net", ["mlp", "cnn"])
def test_every_entry_of_every_matrix_is_that_of_the_definition(net, norm, stats):
    _check(net, norm, stats, {"hessian": tuple(LOSSES), "gauss_newton": tuple(LOSSES)})


@pytest.mark.parametrize("norm", ["batch", "torch"])
def test_the_three_readings_differ(norm):
    model, (x, y, _) = network("mlp", norm), data("mlp")
    found = []
    for stats in STATISTICS:
        with opened(model, losses.half_mse, (x, y), stats) as net:
            found.append(dense(net.gauss_newton(), net.size))
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (found[one] - found[other]).abs().max() > 0.01 * found[one].abs().max()


@pytest.mark.parametrize("matrix", ["hessian", "gauss_newton"])
def test_a_block_is_that_of_the_whole_matrix(matrix):
    model, (x, y, _) = network("mlp", "batch"), data("mlp")
    with opened(model, losses.half_mse, (x, y)) as net:
        whole = dense(getattr(net, matrix)(), net.size)
        ends = np.cumsum([0] + [leaf.numel() for leaf in net.leaves])
    chosen = (0, 2, 4)
    at = torch.cat([torch.arange(int(ends[i]), int(ends[i + 1])) for i in chosen])
    with untouched(model) as lent:
        part = Network(lent, model, losses.half_mse, (x, y), stats="batch", chosen=chosen)
        block = dense(getattr(part, matrix)(), part.size)
    assert (block - whole[at][:, at]).abs().max() <= 1e-12 * whole.abs().max()


def test_products_are_linear_and_do_not_wear_out():
    model, (x, y, _) = network("cnn", "noisy"), data("cnn")
    with opened(model, losses.half_mse, (x, y)) as net:
        v, w = torch.randn(2, net.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        for product in (net.hessian(), net.gauss_newton()):
            first = product(v)
            assert (product(2 * v - w) - 2 * first + product(w)).abs().max() <= 1e-12 * first.abs().max()
            assert torch.equal(product(v), first)


def test_a_loss_linear_in_the_outputs_has_no_gauss_newton_matrix():
    model, (x, y, _) = network("mlp", "batch"), data("mlp")
    with opened(model, lambda f, y: f.sum(), (x, y)) as net:
        assert not dense(net.gauss_newton(), net.size).any()
        assert dense(net.hessian(), net.size).any()


def test_a_loss_linear_in_the_parameters_has_no_hessian():
    with opened(nn.Linear(2, 1), lambda f, y: f.sum(), (torch.ones(3, 2), None)) as net:
        assert not net.hessian()(torch.ones(3)).any()
        assert not net.gauss_newton()(torch.ones(3)).any()


def test_a_shared_weight_counts_once():
    layer = nn.Linear(2, 2, bias=False).double()
    model = nn.Sequential(layer, nn.Tanh(), layer)
    x, y = torch.randn(2, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta = layer.weight.detach().reshape(-1).numpy().copy()

    def outputs(at: np.ndarray) -> np.ndarray:
        w = torch.from_numpy(at).view(2, 2)
        return (torch.tanh(x @ w.T) @ w.T).reshape(-1).numpy()

    jacobian = reference.central_jacobian(outputs, theta)
    with opened(model, losses.half_mse, (x, y)) as net:
        assert net.size == 4
        assert_entries(dense(net.gauss_newton(), 4), jacobian.T @ jacobian / 4, "shared")


@pytest.mark.parametrize("norm", NORMS)
def test_a_teacher_that_is_the_network_itself_has_one_matrix(norm):
    """Where the residual is zero the Hessian is the Fisher matrix, whatever the normalizer and the statistics."""
    for net_name in ("mlp", "cnn"):
        model, (x, _, _) = network(net_name, norm), data(net_name)
        for stats in STATISTICS if norm in ("batch", "torch", "l2") else ("batch",):
            with opened(model, losses.half_mse, (x, None), stats) as net:
                y = net.output().detach()
            with opened(model, losses.half_mse, (x, y), stats) as net:
                hessian, ggn = (dense(make(), net.size) for make in (net.hessian, net.gauss_newton))
            assert ggn.abs().max() > 0.01
            assert (hessian - ggn).abs().max() <= 1e-10, (net_name, stats)


def test_cross_entropy_of_the_networks_own_distribution_has_one_matrix():
    """Soft targets equal to the predicted probabilities: zero slope at every output, so Hessian and Fisher agree."""
    model, (x, _, _) = network("mlp", "batch"), data("mlp")
    with opened(model, F.cross_entropy, (x, torch.full((len(x), OUTPUTS), 1 / OUTPUTS).double())) as net:
        y = net.output().detach().softmax(1)
    with opened(model, F.cross_entropy, (x, y)) as net:
        hessian, ggn = (dense(make(), net.size) for make in (net.hessian, net.gauss_newton))
    assert (hessian - ggn).abs().max() <= 1e-10


@pytest.mark.parametrize("stats", ["batch", "running"])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("affine", [True, False])
def test_fused_tangents_of_batchnorm_are_those_of_reverse_mode_twice(stats, form, affine):
    torch.manual_seed(0)
    norms = [BatchNorm2d(5, affine=affine), nn.BatchNorm2d(4, affine=affine)]
    model = nn.Sequential(
        nn.Conv2d(3, 5, 3), norms[0], nn.ReLU(), nn.Conv2d(5, 4, 3, bias=False), norms[1], nn.Flatten()
    )
    model = model.double().to(memory_format=form)
    x = (3.0 + torch.randn(6, 3, 7, 7, dtype=torch.float64)).to(memory_format=form)
    model(x)
    assert len(fused(model)) == 2
    with untouched(model) as lent:
        network = Network(lent, model, losses.half_mse, (x, torch.zeros(6, 36)), stats=stats)
        v = torch.randn(network.size, dtype=torch.float64)
        torch.testing.assert_close(network.jvp()(v), network._reverse_twice()(v), rtol=1e-12, atol=1e-12)
        assert network.forward_mode
