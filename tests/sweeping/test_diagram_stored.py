"""The stored phase diagrams: their plans are the examples', and their boundaries agree."""

import json
from math import log10
from pathlib import Path

import pytest

from normscope.sweeping import PhaseDiagram, Plan

ROOT = Path(__file__).parents[2]
SQUARED = ROOT / "results/phase-mnist-mlp.json"
ENTROPY = ROOT / "results/phase-mnist-mlp-cross-entropy.json"
# gamma -> log10 of the first diverging rate, found with other code on a grid of 0.05 decades, one epoch.
FOUND_BEFORE = {0.1: -0.15, 0.25: -0.45, 0.5: -0.9, 1.0: -1.55, 2.0: -2.15, 4.0: -2.8}


@pytest.mark.parametrize(("path", "plan"), [(SQUARED, "sweep_mnist"), (ENTROPY, "sweep_mnist_cross_entropy")])
def test_stored_results_are_those_of_the_example(path, plan):
    described = Plan.from_toml(ROOT / f"examples/{plan}.toml")
    found = PhaseDiagram.load(path)
    assert json.loads(path.read_text())["hash"] == found.plan.hash == described.hash
    assert len(found.outcomes) == len(described.learning_rates) * len(described.values) * len(described.seeds)


def test_the_boundary_agrees_with_the_one_found_before_within_the_grid():
    boundary = PhaseDiagram.load(SQUARED).boundary()
    for gamma, before in FOUND_BEFORE.items():
        here = min(boundary, key=lambda edge, gamma=gamma: abs(log10(edge.value / gamma)))
        # Where gamma is not on the grid, the boundary goes as gamma^-2.
        expected = before - 2 * log10(here.value / gamma)
        assert abs(log10(here.diverges) - expected) <= 0.2 + 0.05


def test_with_cross_entropy_nothing_diverges_below_three():
    found = PhaseDiagram.load(ENTROPY)
    assert all(one.diverged_at is None for one in found.outcomes if one.cell.lr < 3.0)
