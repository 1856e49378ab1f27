"""How far samples differ in length: against one random layer, and against independent Gaussians."""

import math

import pytest
import torch

from normscope.theory.gaussian import RELU, Activation
from normscope.theory.lengths import fluctuations, longest

TANH = Activation("tanh", torch.tanh)


@pytest.mark.parametrize(("phi", "mean"), [(RELU, 0.0), (RELU, 0.5), (TANH, 0.0), (TANH, 0.4)])
def test_one_layer_adds_the_variance_of_its_squares(phi, mean):
    """Relative variances of |phi|^2 and |phi'|^2 over N channels and S sites of correlation c, 20,000 draws."""
    channels, sites, c, q, draws = 8, 4, 0.3, 1.3, 20_000
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(draws, channels, 1, generator=generator, dtype=torch.float64)
    own = torch.randn(draws, channels, sites, generator=generator, dtype=torch.float64)
    z = mean + math.sqrt(q) * (math.sqrt(c) * common + math.sqrt(1 - c) * own)
    z.requires_grad_()
    values = phi.function(z)
    (slopes,) = torch.autograd.grad(values.sum(), z)
    correlations = torch.full((sites, sites), c, dtype=torch.float64).fill_diagonal_(1)
    found = fluctuations(phi, q, mean, correlations)
    for each, by in zip((values.detach(), slopes), found[:2], strict=True):
        squares = each.square().mean((1, 2))
        expected = float(squares.var() / squares.mean() ** 2)
        # The variance of 20,000 draws is known to about 2 %; powers above the fourth are put on it.
        assert float(by.mean()) / channels == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("phi", [RELU, TANH])
def test_the_slope_is_that_of_the_squared_length(phi):
    z = torch.randn(400_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = 1e-3
    up, down = (float(phi.function(math.sqrt(1 + s) * z).square().mean().log()) for s in (step, -step))
    slope = fluctuations(phi, 1.0, 0.0, torch.ones(1, 1))[2]
    assert slope == pytest.approx((up - down) / (2 * step), rel=0.02)


@pytest.mark.parametrize("m", [8, 64, 512])
def test_the_longest_of_a_batch(m):
    z = torch.randn(4000, m, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    s = 0.15
    expected = float((s * z - s * s / 2).exp().amax(1).mean())
    assert longest(m, s * s) == pytest.approx(expected, rel=0.01)
    assert longest(1, s * s) == longest(m, 0.0) == 1.0
