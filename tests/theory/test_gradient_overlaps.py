"""Overlaps of gradients that are handed down, against drawn matrices."""

import math

import pytest
import torch
from torch import Tensor

from normscope.theory.gradient_overlaps import GradientOverlaps, Origin
from normscope.theory.modes import Bulk

# (channels, what the parameters there add, where the gradients come from), from the output down.
NETWORKS = {
    "one layer": [(64, 1.0, Origin(own=1.0))],
    "a chain": [
        (128, 1.0, Origin(own=1.0)),
        (64, 1.0, Origin(mixed={0: 0.5}, own=0.5)),
        (64, 2.0, Origin(mixed={1: 0.5}, own=0.5)),
    ],
    "skip connections": [
        (64, 0.5, Origin(own=1.0)),
        (64, 0.7, Origin(mixed={0: 0.5}, own=0.5)),
        (64, 1.0, Origin(same={0: 0.5}, mixed={1: 0.3}, own=0.2)),
        (64, 2.0, Origin(same={2: 0.8}, own=0.2)),
    ],
}


def edge(network: list[tuple[int, float, Origin]], rows: int) -> float:
    handed = GradientOverlaps()
    for n, size, origin in network:
        handed.add(handed.drawn(origin, n), size)
    return Bulk([], rows, handed, rows).edge()


def drawn(network: list[tuple[int, float, Origin]], rows: int, generator: torch.Generator) -> float:
    """The largest eigenvalue of sum c s s^T."""
    made: list[Tensor] = []
    found = torch.zeros(rows, rows, dtype=torch.float64)
    for n, size, origin in network:

        def draw(height: int, n: int = n) -> Tensor:
            return torch.randn(height, n, generator=generator, dtype=torch.float64) / math.sqrt(n)

        s = math.sqrt(origin.own) * draw(rows)
        for k, share in origin.same.items():
            s = s + math.sqrt(share) * made[k]
        for k, share in origin.mixed.items():
            s = s + math.sqrt(share) * made[k] @ draw(made[k].shape[1])
        made.append(s)
        found += size * s @ s.T
    return float(torch.linalg.eigvalsh(found)[-1])


@pytest.mark.parametrize("rows", [64, 256])
@pytest.mark.parametrize("name", NETWORKS)
def test_edges_against_draws(name, rows):
    """At most 9 % above for 64 channels; for one layer within 3 %."""
    generator = torch.Generator().manual_seed(0)
    draws = [drawn(NETWORKS[name], rows, generator) for _ in range(4)]
    ratio = edge(NETWORKS[name], rows) * len(draws) / sum(draws)
    assert 0.97 < ratio < (1.03 if name == "one layer" else 1.09)


def test_what_is_handed_down_adds_up():
    """The same sizes drawn anew at every layer have a smaller edge."""
    free = [(n, size, Origin(own=1.0)) for n, size, _ in NETWORKS["a chain"]]
    assert edge(free, 256) < 0.7 * edge(NETWORKS["a chain"], 256)


def test_what_came_as_it_is_needs_no_draw():
    handed = GradientOverlaps()
    first = handed.drawn(Origin(own=1.0), 64)
    assert handed.drawn(Origin(same={first: 1.0}), 64) == first
    assert handed.drawn(Origin(same={first: 0.5}, own=0.5), 64) != first


def test_shares_stay_shares():
    one, two = Origin({0: 0.25}, {1: 0.5}, 0.25), Origin(mixed={1: 1.0})
    found = one.plus(two, 0.5).masked(0.8)
    assert sum(found.same.values()) + sum(found.mixed.values()) + found.own == pytest.approx(1)
    assert found.mixed == {1: pytest.approx(0.6)}
