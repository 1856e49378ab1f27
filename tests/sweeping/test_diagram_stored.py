"""The stored phase diagrams: their plans are the examples', and the README says what they say."""

import json
from math import log10
from pathlib import Path

import pytest

from normscope.sweeping import PhaseDiagram, Plan, stored_lines

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


def test_readme_says_what_is_stored():
    readme = " ".join((ROOT / "README.md").read_text().split())
    squared, entropy = PhaseDiagram.load(SQUARED), PhaseDiagram.load(ENTROPY)
    near = squared.agreement(stored_lines(SQUARED))
    far = entropy.agreement(stored_lines(ENTROPY))
    assert f"{near['measured'].median:+.2f} decades from eta* as measured" in readme
    assert f"{near['predicted'].median:+.2f} from eta* as predicted" in readme
    assert f"at worst {near['measured'].worst:.2f} and {near['predicted'].worst:.2f}" in readme
    assert f"up to {far['measured'].worst:.2f} decades beyond eta*" in readme


def test_readme_says_the_rates_that_are_stored():
    readme = " ".join((ROOT / "README.md").read_text().split())
    runs = json.loads((ROOT / "benchmarks/results/sweep-h200.json").read_text())["runs"]
    fastest = {name: max(run[name]["alone"] for run in runs if name in run) for name in ("MLP", "CNN")}
    mlp, cnn = (
        next(row for run in runs for row in run.get(name, {}).get("stacked", ()) if row["way"] == "as it is")
        for name in ("MLP", "CNN")
    )
    assert f"make {mlp['rate']:,.0f} model-steps a second, {mlp['of_floor']:.2f} of what memory" in readme
    assert f"256 CNNs {cnn['rate']:,.0f}: {mlp['ratio']:.0f} and {cnn['ratio']:.0f} times one at a time" in readme
    against = [row["rate"] / fastest[name] for name, row in (("MLP", mlp), ("CNN", cnn))]
    assert f"{against[0]:.0f} and {against[1]:.0f} times the fastest one at a time" in readme
    eager, many, compiled, compiled_many = (
        row["ratio"]
        for row in json.loads((ROOT / "benchmarks/results/sweep-cpu.json").read_text())["digits MLP"]["stacked"]
    )
    assert f"{eager:.1f} and {many:.1f} times eager, {compiled:.1f} and {compiled_many:.1f} compiled" in readme
