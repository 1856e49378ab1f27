"""Gammas and betas are few: gradients of many samples and outputs share their directions, and lambda feels it."""

import math

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.theory.gaussian import RELU, Activation, gamma_beta_correlation
from normscope.theory.modes import Bulk


def affine_of(width: int, m: int, seed: int, outputs: int) -> tuple[nn.Module, torch.Tensor]:
    """A BatchNorm network of which only gammas and betas are trained, and their gradients, row by row."""
    net = ns.models.MLP(200, outputs, width=width, norm="batch", gamma=0.1, seed=seed)
    for module in net.modules():
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(isinstance(module, nn.BatchNorm1d))
    trained = [p for p in net.parameters() if p.requires_grad]
    out = net(torch.randn(m, 200, generator=torch.Generator().manual_seed(seed)))
    rows = [torch.cat(torch.autograd.grad(one, trained, retain_graph=True)) for one in out.T.flatten()]
    return net, torch.stack(rows).double()


def test_rows_of_all_outputs_against_draws():
    """C m rows of n entries are m rows of n / C entries that are C times as large."""
    outputs, m, n = 10, 64, 32
    draws = torch.randn(8, outputs * m, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tops = torch.linalg.matrix_norm(draws, 2).square() / n
    edge = Bulk([(torch.tensor([outputs / n], dtype=torch.float64), n / outputs)], m).edge()
    assert edge == pytest.approx((1 + math.sqrt(outputs * m / n)) ** 2)
    assert edge == pytest.approx(float(tops.mean()), rel=0.03)


@pytest.mark.parametrize(("width", "m", "outputs"), [(80, 64, 10), (200, 32, 4)])
def test_data_modes_of_gammas_and_betas(width, m, outputs):
    """Against the largest eigenvalue with every output's mean over the batch taken out: 0.8 to 1 times it.

    As if there were as many directions as rows it was 0.23 times (the first). What is missing: in front of few outputs
    some channels' weights are longer than others'.
    """
    found, wanted = [], []
    for seed in range(3):
        net, rows = affine_of(width, m, seed, outputs)
        apart = rows.view(outputs, m, -1)
        apart = (apart - apart.mean(1, keepdim=True)).flatten(0, 1)
        wanted.append(float(torch.linalg.matrix_norm(apart, 2)) ** 2 / m)
        found.append(ns.predict(net, (200,), "half_mse", batch_size=m).data_mode)
    assert 0.78 < sum(found) / sum(wanted) < 1.05


@pytest.mark.parametrize(
    ("phi", "function", "mean"),
    [(RELU, torch.relu, 0.0), (RELU, torch.relu, 0.5), (Activation("tanh", torch.tanh), torch.tanh, 0.3)],
)
def test_lean_against_draws(phi, function, mean):
    z = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at = (mean + z).requires_grad_()
    (slope,) = torch.autograd.grad(function(at).sum(), at)
    drawn = (slope**2 * z).mean() / ((slope**2).mean() * (slope**2 * z**2).mean()).sqrt()
    assert gamma_beta_correlation(phi, 1.0, mean) == pytest.approx(float(drawn), abs=0.005)
