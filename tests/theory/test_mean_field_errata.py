"""What Wei et al. 2019 say, against networks: where the print fails, and what holds in its place."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
import reference_meanfield as reference
from normscope.theory import printed

PI = math.pi


def _frozen(width, gamma, seed, *, batch=400, layers=4):
    """E ||delta^l||^2 and q^l, q_xy^l for l = 1 .. L, over one random network with its statistics held constant."""
    rng = torch.Generator().manual_seed(seed)
    h = torch.randn(batch, width, generator=rng, dtype=torch.float64)
    weights, slopes, q, q_xy, q_hat = [], [], [], [], []
    for layer in range(layers):
        outputs = 1 if layer == layers - 1 else width
        weights.append(torch.randn(outputs, width, generator=rng, dtype=torch.float64) * math.sqrt(2 / width))
        z = h @ weights[-1].T + math.sqrt(0.5) * torch.randn(outputs, generator=rng, dtype=torch.float64)
        q.append(z.square().mean().item())
        q_xy.append(z.mean(0).square().mean().item())
        s = z.std(0, correction=0)
        h = (gamma * (z - z.mean(0)) / s).relu()
        slopes.append(gamma / s * (h > 0))
        q_hat.append((h.square().mean().item(), h.mean(0).square().mean().item()))
    delta = torch.ones(batch, 1, dtype=torch.float64)
    squared = [1.0]
    for weight, slope in zip(weights[:0:-1], slopes[-2::-1], strict=True):
        delta = slope * (delta @ weight)
        squared.insert(0, delta.square().sum(1).mean().item())
    return np.array(squared), np.array(q), np.array(q_xy), q_hat


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_backward_recursion_divides_by_the_variance(gamma):
    """E-MF-6: qt^1..4 over 8 networks of width 500, within 8 %; the printed form is off by a third and more."""
    runs = [_frozen(500, gamma, seed) for seed in range(8)]
    measured = np.mean([run[0] for run in runs], axis=0)
    paper = printed.dense((500, 500, 500, 500, 1), gamma=gamma)
    variances = np.array(paper.q) - np.array(paper.q_xy)
    corrected = [1.0]
    for variance in variances[-2::-1]:
        corrected.insert(0, corrected[0] * gamma**2 * 2 / 2 / variance)
    assert variances[:2] == pytest.approx([2.0, 2 * gamma**2 * (PI - 1) / (2 * PI)])
    assert measured == pytest.approx(corrected, rel=0.08)
    assert max(paper.q_tilde[:2]) < 0.5 * min(measured[:2])


def test_forward_moments_have_no_second_sigma_w2():
    """(52), (53) carry sw2, (54) does not: qh = gamma^2/2 and qh_xy = gamma^2/(2 pi), within 5 %, at sw2 = 2."""
    *_, q_hat = _frozen(500, 1.0, 0)
    for own, pair in q_hat[:3]:
        assert own == pytest.approx(0.5, rel=0.05)
        assert pair == pytest.approx(1 / (2 * PI), rel=0.05)


def test_printed_lambda_is_not_the_frozen_one():
    """E-MF-6: width 300, one output, statistics held constant, mean of three: the corrected form is met within 10 %."""
    found = []
    for seed in range(3):
        model = ns.models.MLP(200, 1, width=300, norm="batch", seed=seed)
        x = torch.randn(300, 200, generator=torch.Generator().manual_seed(seed))
        looked = ns.measure(model, ns.losses.half_mse, (x, torch.zeros(300, 1)), stats="frozen", parameters=_weights)
        found.append(looked.lambda_max)
    paper = printed.dense((200, 300, 300, 300, 1), gamma=1.0).lambda_max
    assert np.mean(found) == pytest.approx(reference.frozen_dense(300, 1.0), rel=0.1)
    assert paper < 0.75 * np.mean(found)


def _weights(name, parameter):
    return parameter.ndim > 1


def test_the_optimal_rate_is_half_the_limit_without_momentum_only():
    """E-MF-1: with mu = 0.9 the spectral radius is sqrt(mu) for every eta lambda in [(1-sqrt mu)^2, (1+sqrt mu)^2]."""

    def radius(step, mu):
        return max(abs(np.roots([1, step - 1 - mu, mu])))

    assert radius(1.0, 0.0) == pytest.approx(0, abs=1e-12)
    assert radius(0.9, 0.0) > 0.05
    mu = 0.9
    for step in np.linspace((1 - mu**0.5) ** 2 + 1e-9, (1 + mu**0.5) ** 2 - 1e-9, 50):
        assert radius(step, mu) == pytest.approx(mu**0.5, abs=1e-4)
    assert radius(2 * (1 + mu) - 1e-6, mu) < 1 < radius(2 * (1 + mu) + 1e-6, mu)


def test_a_stride_feeds_fewer_sites():
    """E-MF-10 (i): an input site feeds |F| K_{l+1} / K_l output sites on average, 1.94 for 28 -> 13, not 9."""
    conv = nn.Conv2d(1, 1, 3, stride=2, bias=False)
    nn.init.ones_(conv.weight)
    x = torch.zeros(1, 1, 28, 28, requires_grad=True)
    (fed,) = torch.autograd.grad(conv(x).sum(), x)
    assert fed.mean().item() == pytest.approx(9 * 169 / 784)


def test_sites_of_the_last_map_are_uncorrelated_backwards():
    """E-MF-10 (ii): each site meets weights of its own in the dense layer, so that qt_ab = 0 and qt = qt_dense / K."""
    torch.manual_seed(0)
    channels, sites = 200, 4
    products = []
    for _ in range(50):
        delta = math.sqrt(2 / (channels * sites)) * torch.randn(channels, sites)
        gram = delta.T @ delta
        products.append((gram.diagonal().mean().item(), (gram.sum() - gram.trace()).item() / 12))
    own, pair = np.mean(products, axis=0)
    assert own == pytest.approx(2 / sites, rel=0.05)
    assert abs(pair) < 0.02 * own


def test_printed_convolutional_bound_is_a_hundred_times_too_large():
    """E-MF-10: the paper's CNN on 28 x 28 images without BatchNorm, 904 by the corrected count, 98,669 as printed.

    The bound is a lower one in the print: lambda_max >= 98,669, and the largest measured eigenvalue is below 2,000.
    """
    model = ns.models.CNN(1, 28, 1)
    x = torch.randn(128, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    found = ns.measure(model, ns.losses.half_mse, (x, torch.zeros(128, 1)), parameters=_weights)
    paper = printed.convolutional((1, 30, 60, 90), (784, 169, 36, 4), (9, 9, 9)).lambda_max
    assert found.converged
    assert 450 < found.lambda_max < 1800
    assert paper > 50 * found.lambda_max
