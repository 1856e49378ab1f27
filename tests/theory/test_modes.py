"""Edges, outliers and widening against random matrices; cross-entropy's curvature and maxima against Monte Carlo."""

import pytest
import torch

from normscope.theory import softmax
from normscope.theory.maxima import largest, of_windows, products
from normscope.theory.modes import Bulk, common_spread, unevenness, widening
from normscope.theory.site_pairs import ExactSites
from normscope.theory.softmax import curvature
from normscope.theory.taps import Window


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def bulk(m: int, t: torch.Tensor) -> torch.Tensor:
    y = normal(m, len(t))
    return (y * t) @ y.T


def test_edge_of_a_mixed_spectrum():
    t = torch.cat([torch.full((300,), 1 / 300), torch.full((100,), 4 / 300)]).double()
    tops = [float(torch.linalg.eigvalsh(bulk(400, t))[-1]) for _ in range(5)]
    # Top eigenvalues lie below the edge by about m^(-2/3) of it.
    assert sum(tops) / 5 == pytest.approx(Bulk([(t, 1.0)], 400).edge(), rel=0.05)


def test_edge_of_two_parts_is_that_of_one():
    one, two = torch.full((30,), 0.02, dtype=torch.float64), torch.full((10,), 0.05, dtype=torch.float64)
    both = Bulk([(one, 1.0), (two, 1.0)], 50)
    assert both.edge() == pytest.approx(Bulk([(torch.cat([one, two]), 1.0)], 50).edge())
    assert Bulk([(one[:1], 30.0)], 50).edge() == pytest.approx(Bulk([(one, 1.0)], 50).edge())


@pytest.mark.parametrize("variance", [1e6, 1e40, 1e200])
def test_edge_of_a_large_diagonal_is_that_of_the_semicircle(variance):
    """1/u + v u is smallest at u = v^(-1/2), however far that lies below the end of the interval."""
    t = torch.full((16,), 1 / 16, dtype=torch.float64)
    rel = 2e-3 if variance < 1e9 else 1e-12
    assert Bulk([(t, 1.0)], 64).edge(variance) == pytest.approx(2 * variance**0.5, rel=rel)


@pytest.mark.parametrize("spread", [0.3, 0.6])
def test_entries_of_the_diagonal_widen_the_edge(spread):
    """A diagonal of its own, as samples of different length have it: R-transforms add."""
    m, t = 400, torch.full((300,), 1 / 300, dtype=torch.float64)
    tops = []
    for _ in range(5):
        # Even spacing: a diagonal without a longest sample.
        own = spread * 3**0.5 * torch.linspace(-1, 1, m, dtype=torch.float64)
        tops.append(float(torch.linalg.eigvalsh(bulk(m, t) + own.diag())[-1]))
    found = Bulk([(t, 1.0)], m).edge(spread**2)
    assert found > Bulk([(t, 1.0)], m).edge() + 0.3 * spread**2
    # Top eigenvalues lie below the edge by about m^(-2/3) of it, with or without a diagonal.
    assert sum(tops) / 5 == pytest.approx(found, rel=0.04)


def test_entries_of_the_diagonal_push_the_mean_mode():
    m, t, spike = 300, torch.full((600,), 1 / 600, dtype=torch.float64), 6.0
    own = 0.8 * normal(m).diag()
    tops = [float(torch.linalg.eigvalsh(bulk(m, t) + own + spike / m)[-1]) for _ in range(5)]
    assert sum(tops) / 5 == pytest.approx(spike + 1 + Bulk([(t, 1.0)], m).pushed(spike, 0.64), rel=0.02)


def test_data_modes_push_the_mean_mode():
    m, t = 300, torch.full((600,), 1 / 600, dtype=torch.float64)
    spike = 6.0
    tops = [float(torch.linalg.eigvalsh(bulk(m, t) + spike / m)[-1]) for _ in range(5)]
    assert sum(tops) / 5 == pytest.approx(spike + 1 + Bulk([(t, 1.0)], m).pushed(spike), rel=0.02)
    assert Bulk([(t, 1.0)], m).pushed(0.5) == 0.0


@pytest.mark.parametrize(("outputs", "n"), [(10, 100), (10, 1000), (3, 60)])
def test_widening_is_the_top_of_a_wishart_matrix(outputs, n):
    draws = normal(2000, outputs, n)
    tops = torch.linalg.eigvalsh(draws @ draws.transpose(1, 2) / n)[:, -1]
    assert float(tops.mean()) == pytest.approx(widening(outputs, 1 / n), rel=0.03 if outputs > 3 else 0.06)


def test_layers_share_the_fluctuations_above_both():
    """Gram matrices of two layers in a chain, with weights of their own in each."""
    c, n, draws = 6, 80, 2000
    w1, w2 = normal(draws, c, n) / n**0.5, normal(draws, n, n) / n**0.5
    upper, lower = w1 @ w1.mT, (w1 @ w2) @ (w1 @ w2).mT
    top = torch.linalg.eigvalsh(upper + 2 * lower)[:, -1]
    expected = 3 * widening(c, common_spread([(1.0, 1 / n), (2.0, 2 / n)]))
    # Two parts as one Wishart matrix of their common spread: 1.8 % high here, and the draws scatter by 0.2 %.
    assert float(top.mean()) == pytest.approx(expected, rel=0.025)


@pytest.mark.parametrize(("q", "q_xy"), [(0.1, 0.05), (1.5, 0.8), (9.0, 3.0)])
def test_cross_entropy_curvature(q, q_xy):
    tops = []
    for _ in range(200):
        f = q_xy**0.5 * normal(1, 10) + (q - q_xy) ** 0.5 * normal(400, 10)
        p = f.softmax(-1)
        tops.append(torch.linalg.eigvalsh(torch.diag(p.mean(0)) - p.T @ p / 400)[-1])
    assert curvature(10, q, q_xy) == pytest.approx(float(torch.stack(tops).mean()), rel=0.1)


@pytest.mark.parametrize("n", [4, 9])
@pytest.mark.parametrize("r", [0.0, 0.5])
def test_moments_of_the_largest(n, r):
    z = r**0.5 * normal(200_000, 1) + (1 - r) ** 0.5 * normal(200_000, n)
    m = torch.relu(z.amax(1))
    (found,) = largest(torch.relu, [n], 1.0, 0.0, r)
    assert float(found[0]) == pytest.approx(float(m.mean()), rel=5e-3)
    assert float(found[1]) == pytest.approx(float(m.square().mean()), rel=1e-2)
    assert float(found[2]) == pytest.approx(float((z.amax(1) > 0).double().mean()), rel=5e-3)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("c", [0.0, 0.3, 0.6, 0.9])
def test_products_of_maxima_are_within_three_percent(size, c):
    n = size * size
    one, two = normal(200_000, n), normal(200_000, n)
    other = c * one + (1 - c * c) ** 0.5 * two
    measured = float((torch.relu(one.amax(1)) * torch.relu(other.amax(1))).mean())
    window = Window(ExactSites(size, size, 2), (size, size), (size, size), (0, 0))
    found, _ = of_windows(window, torch.relu, 1.0, 0.0, 0.0)
    own = torch.full((1,), 1 / n, dtype=torch.float64)
    value = products(window.after, found, torch.full((1, 1), c / n, dtype=torch.float64), own)
    assert float(value) == pytest.approx(measured, abs=0.03 * float(found.square))


def test_unevenness_is_the_variance_of_the_top_of_a_wishart_matrix():
    outputs, n = 10, 60
    found = torch.stack([normal(outputs, n) for _ in range(3000)])
    tops = torch.linalg.eigvalsh(found @ found.mT / n)[:, -1]
    assert float(tops.mean()) == pytest.approx(widening(outputs, 1 / n), rel=0.03)
    assert float((tops / tops.mean()).var()) == pytest.approx(unevenness(outputs, 1 / n), rel=0.25)


@pytest.mark.parametrize(("outputs", "q", "q_xy"), [(3, 400.0, 100.0), (10, 1.3, 0.4), (200, 30.0, 3.0)])
def test_exponentials_multiplied_are_those_taken_one_by_one(outputs, q, q_xy, monkeypatch):
    multiplied = softmax.curvature(outputs, q, q_xy)
    monkeypatch.setattr(softmax, "_LARGEST_EXPONENT", -1.0)
    assert multiplied == pytest.approx(softmax.curvature(outputs, q, q_xy), rel=1e-13)
