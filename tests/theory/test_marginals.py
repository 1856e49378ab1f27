"""Distributions that are carried through relu(skip + branch), against draws of that chain written out."""

import math

import pytest
import torch
from torch import Tensor

from normscope.theory.gaussian import RELU, Activation, Pairs
from normscope.theory.marginals import Joined, Marginal, gaussian
from normscope.theory.maxima import distribution
from normscope.theory.modes import weighed_widening, widening
from normscope.theory.site_pairs import ExactSites
from normscope.theory.softmax import curvatures
from normscope.theory.taps import Window

DRAWS = 400_000
LEAKY = Activation("leaky", lambda z: torch.where(z > 0, z, 0.3 * z), line=(0.3, 0.7))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def carried(blocks: int, phi: Activation = RELU) -> Marginal:
    z = gaussian(0.0, 1.0)
    for _ in range(blocks):
        z = z.through(phi).plus(0.0, 1.0)
    return z


def drawn(g: Tensor, phi: Activation = RELU) -> list[Tensor]:
    """z of every block; g: a row for each."""
    z = [g[0]]
    for row in g[1:]:
        z.append(phi.function(z[-1]) + row)
    return z


@pytest.mark.parametrize("phi", [RELU, LEAKY], ids=["relu", "leaky"])
def test_the_chain_is_the_one_that_is_drawn(phi):
    """Four standard errors of the mean, or the square of a cell."""
    for blocks, z in enumerate(drawn(normal(7, DRAWS), phi)):
        found = carried(blocks, phi).through(phi)
        r = phi.function(z)
        for power in (1, 2):
            error = 4 * float(r.pow(power).std()) / DRAWS**0.5
            assert float(found.at**power @ found.weight) == pytest.approx(
                float(r.pow(power).mean()), abs=error, rel=1e-3
            )


def test_a_gaussian_of_the_same_moments_is_not_the_chain():
    """Var relu(z) five sums on: 2.14, where Gaussians in place of every z give 1.72."""
    mean, square = math.sqrt(1 / (2 * math.pi)), 0.5
    for _ in range(5):
        q = square - mean**2 + 1
        root, at = math.sqrt(q), mean / math.sqrt(q)
        density, below = math.exp(-at * at / 2) / math.sqrt(2 * math.pi), 0.5 * (1 + math.erf(at / math.sqrt(2)))
        mean, square = mean * below + root * density, (mean**2 + q) * below + mean * root * density
    assert square - mean**2 == pytest.approx(1.716, abs=0.001)
    found = carried(5).through(RELU)
    assert found.square - float(found.at @ found.weight) ** 2 == pytest.approx(2.14, abs=0.01)


def test_slopes_of_successive_blocks_go_together():
    """P(all of three masks), by conditional means that are pulled back; independent ones would give 0.27."""
    z = drawn(normal(4, DRAWS))
    together = float(((z[1] > 0) & (z[2] > 0) & (z[3] > 0)).double().mean())
    one, two, three = (carried(k) for k in (1, 2, 3))
    middle = two.pulled((two.at > 0) * three.pulled((three.at > 0).double()))
    found = float(((one.at > 0) * middle) @ one.weight)
    assert found == pytest.approx(together, abs=4 * 0.5 / DRAWS**0.5)
    assert math.prod(float((m.at > 0).double() @ m.weight) for m in (one, two, three)) < 0.85 * found


@pytest.mark.parametrize("c", [-0.1, 0.0, 0.3, 0.7, 1.0])
def test_pairs_of_places(c):
    """Branches of every block correlated alike; the joint law is a model, exact at the ends, within 1 % between."""
    one, other = normal(4, DRAWS), normal(4, DRAWS, seed=1)
    pair = [drawn(g)[-1] for g in (one, c * one + math.sqrt(1 - c * c) * other)]
    middle = float(torch.stack(pair).mean())
    k = float(((pair[0] - middle) * (pair[1] - middle)).mean())
    q = float(torch.stack(pair).var())

    def one_place(value: float) -> Tensor:
        return torch.full((1,), value, dtype=torch.float64)

    pairs = Pairs(one_place(k)[None], one_place(q), one_place(middle), lambda v: (v[..., None], v[..., None, :]))
    found = Joined(carried(3), pairs).moments(RELU)
    value = float((torch.relu(pair[0]) * torch.relu(pair[1])).mean())
    slope = float(((pair[0] > 0) & (pair[1] > 0)).double().mean())
    assert float(found.value) == pytest.approx(value, rel=0.01)
    assert float(found.slope) == pytest.approx(slope, rel=0.01)


def test_derivatives_by_the_branch():
    """Stein: E[A(z) g] = q E[A'(z)], A with a jump."""
    g = normal(3, DRAWS)
    z = drawn(g)[-1]
    found = carried(2)
    for values, at in (((z > 0).double(), (found.at > 0).double()), (torch.relu(z).sin(), torch.relu(found.at).sin())):
        assert float(found.falls @ at) == pytest.approx(float((values * g[-1]).mean()), abs=5 / DRAWS**0.5)


@pytest.mark.parametrize("r", [0.0, 0.5])
def test_the_largest_of_a_window(r):
    z = math.sqrt(r) * normal(DRAWS, 1) + math.sqrt(1 - r) * normal(DRAWS, 9, seed=1)
    window = Window(ExactSites(3, 3, 2), (3, 3), (3, 3), (0, 0))
    found, drawn_ = distribution(window, 1.0, 0.0, r).through(RELU), torch.relu(z.amax(1))
    for power in (1, 2):
        wanted = float(drawn_.pow(power).mean())
        assert float(found.at**power @ found.weight) == pytest.approx(wanted, rel=5e-3)


@pytest.mark.parametrize(("outputs", "n"), [(10, 60), (200, 60), (200, 400)])
@pytest.mark.parametrize("q", [0.4, 3.0])
def test_unequal_outputs_widen_less(outputs, n, q):
    """Random cotangents under the curvatures of cross-entropy."""
    heights = curvatures(outputs, q, 0.8 * q)
    heights = heights / heights[0]
    tops = [float(torch.linalg.eigvalsh(_gram(normal(outputs, n, seed=seed), heights) / n)[-1]) for seed in range(60)]
    assert weighed_widening(heights, 1 / n) == pytest.approx(sum(tops) / len(tops), rel=0.05)
    assert weighed_widening(heights, 1 / n) < widening(outputs, 1 / n)


def _gram(w: Tensor, heights: Tensor) -> Tensor:
    """Of cotangents w, a row for each output."""
    root = heights.sqrt()[:, None] * w
    return root @ root.T
