"""docs/evidence: pages that scripts write from stored results are what those scripts write now."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["performance", "accuracy", "tuning"])
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


def test_the_page_about_tune_says_what_the_race_found():
    """Regrets, ranks and lost tasks, found again from the runs one by one."""
    page = (ROOT / "docs/evidence/tuning.md").read_text(encoding="utf-8")
    race = json.loads((ROOT / "benchmarks/tuning/results/race.json").read_text())
    for name in ("all", "held-out"):
        means = {}
        for method, row in race[name]["same optimizer"].items():
            for task, _, regret, *_ in row["cells"]:
                means.setdefault(method, {}).setdefault(task, []).append(regret / 3)
        means = {method: {task: sum(three) for task, three in found.items()} for method, found in means.items()}
        mean = sum(means["tune"].values()) / len(means["tune"])
        assert f"{len(means['tune'])} tasks" in page
        assert f"lost {mean:.1f} points in the mean" in page
        assert f"{max(means['tune'].values()):.1f} on the worst task" in page
    for task, own in means["tune"].items():
        lost = any(found[task] < own - 0.5 for method, found in means.items() if method != "tune")
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {_about(task)} | yes |")]
        assert float(row.split("|")[4]) == pytest.approx(own, abs=0.0501)
        assert page.count(f"| {_about(task)} |") == 1 + lost, task


def _about(task):
    (path,) = (ROOT / "benchmarks/tuning").glob(f"tasks*/{task}.py")
    return path.read_text(encoding="utf-8").split('"""')[1].split("\n\n")[0].strip().rstrip(".")


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
