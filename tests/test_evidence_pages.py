"""docs/evidence: pages that scripts write from stored results are what those scripts write now."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["performance", "accuracy"])
def test_the_page_is_what_the_stored_results_give(name):
    """After new runs: python benchmarks/NAME_page.py > docs/evidence/NAME.md"""
    script = ROOT / f"benchmarks/{name}_page.py"
    printed = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True, timeout=120)
    assert printed.stdout == (ROOT / f"docs/evidence/{name}.md").read_text(encoding="utf-8")


def test_the_summary_of_accuracy_says_the_worst_cases():
    """Numbers of the first table, found again in the stored files by another way."""
    page = (ROOT / "docs/evidence/accuracy.md").read_text(encoding="utf-8")
    rows = json.loads((ROOT / "results/theory-lambda.json").read_text())["rows"]
    worst = max((row for row in rows if row["width"] >= 30), key=lambda row: abs(row["error"]))
    assert f"| {100 * worst['error']:+.0f} % | 80 networks |" in page
    phases = json.loads((ROOT / "results/phase-mnist-mlp-cross-entropy.json").read_text())
    far = max(next(one for one in phases["agreement"] if one["name"] == "measured")["by_value"].values())
    assert f"{far:+.2f} decades" in page
    assert "48.7 points" in page


def test_what_the_performance_page_says_of_the_solvers_holds():
    races = json.loads((ROOT / "benchmarks/results/solve-cpu.json").read_text())["race"]
    for name, kinds in races.items():
        for found in kinds.values():
            ours, theirs, plain = (found[method]["iterations"] for method in ("gdnp", "lbfgs", "gd"))
            assert theirs is not None
            assert ours is None or theirs < ours
            assert ours is None or plain is None or ours < plain
            assert ours is None or name.split()[-1] != "10000"


def test_docs_show_the_landscapes_that_are_stored():
    shown = (ROOT / "docs/evidence/landscapes.md").read_text()
    table = runpy.run_path(str(ROOT / "examples" / "landscape.py"))["table"]
    for name in ("landscape-dln", "landscape-vgg16-cifar10"):
        assert table(ROOT / "results" / f"{name}.json") in shown
