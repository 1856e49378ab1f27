"""The development half of NormFaults: every case builds and repeats, every fault costs something, clean ones train."""

import importlib
import itertools
import json
import math
import sys
from dataclasses import replace

import pytest
import torch

from docs_pages import ROOT

sys.path.append(str(ROOT / "benchmarks"))
CASE, PROBLEMS, TRAINING = (importlib.import_module(f"faults.{name}") for name in ("case", "problems", "training"))
FAULTS, CLEAN = (CASE.cases("development", kind) for kind in ("faults", "clean"))
STORED = json.loads((ROOT / "benchmarks/faults/development/costs.json").read_text(encoding="utf-8"))["rows"]


def costs_enough(faulty, clean):
    """At least four points of accuracy, or a tenth of a loss or an error; a training that diverged costs enough."""
    if faulty is None or not math.isfinite(faulty):
        return True
    return clean - faulty >= (0.04 if clean > 0 else 0.1 * -clean)


def first_losses(setup, steps=2):
    """The losses of the first steps."""
    return TRAINING.train(setup, steps)


def first_batch(setup):
    """All tensors of the first batch."""
    return [part for part in next(iter(setup.batches)) if isinstance(part, torch.Tensor)]


def test_each_problem_that_counts_has_a_fault():
    wanted = {name for name, problem in PROBLEMS.PROBLEMS.items() if problem.severity != "note"}
    assert wanted == {case.problem for case in FAULTS}


def test_the_half_has_fifty_clean_setups_and_names_of_its_own():
    assert len(CLEAN) == 50
    for case in (*FAULTS, *CLEAN):
        assert CASE.load(case.name) is case


def test_faults_from_threads_name_them():
    threads = [case.source for case in FAULTS if case.source != "none"]
    assert len(threads) >= 15
    assert all(source.startswith("https://") for source in threads)


@pytest.mark.parametrize("case", [*FAULTS, *CLEAN], ids=lambda case: case.name)
def test_a_case_repeats_and_follows_its_seed(case):
    first, again, other = case.setup(0), case.setup(0), case.setup(1)
    assert all(map(torch.equal, first.model.state_dict().values(), again.model.state_dict().values()))
    weights = zip(first.model.parameters(), other.model.parameters(), strict=True)
    assert not all(itertools.starmap(torch.equal, weights)) or not all(
        map(torch.equal, first_batch(first), first_batch(other))
    )
    assert len(list(itertools.islice(iter(first.batches), 3))) == 3
    assert len(list(first.batches)) == first.steps * first.accumulate
    # Dropout draws from torch's generator, which `make` seeds.
    case.setup(0)
    torch.manual_seed(0)
    losses = first_losses(first)
    torch.manual_seed(0)
    assert first_losses(again) == losses
    assert all(map(math.isfinite, losses[:1]))


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.name)
def test_a_fixed_twin_differs_from_the_fault(case):
    faulty, fixed = case.setup(0), case.fixed(0)
    assert faulty.steps == fixed.steps
    seen = [(first_losses(setup, 4), TRAINING.evaluate(replace(setup, metric=None))) for setup in (faulty, fixed)]
    # An average that recomputes its statistics does so after 50 steps.
    assert seen[0] != seen[1] or type(faulty.averaged_model) is not type(fixed.averaged_model)


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.name)
def test_a_fault_costs_something_with_each_stored_seed(case):
    rows = [row for row in STORED if row["name"] == case.name]
    assert {row["seed"] for row in rows} == {0, 1, 2}
    for row in rows:
        assert row["problem"] == case.problem
        assert costs_enough(row["faulty"]["metric"], row["clean"]["metric"]), row


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: case.name)
def test_a_clean_setup_trained(case):
    (row, *_) = [row for row in STORED if row["name"] == case.name]
    metric = row["clean"]["metric"]
    assert row["clean"]["last_loss"] < 0.7 * row["clean"]["first_loss"] or metric > 0.9
    # Accuracy, squared error, and the cross-entropy of bytes, which is log(128) = 4.9 at the start.
    assert metric > 0.9 if metric > 0 else metric > -3.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["slow-running-statistics", "glowing-border", "generated-images-apart"])
def test_stored_costs_are_those_of_the_trainings(name):
    case = CASE.load(name)
    (row,) = [row for row in STORED if row["name"] == name and row["seed"] == 0]
    metrics = []
    for setup in (case.setup(0), case.fixed(0)):
        TRAINING.train(setup)
        metrics.append(TRAINING.evaluate(setup))
    assert costs_enough(*metrics)
    # Three points of accuracy: other processors round otherwise.
    assert metrics == pytest.approx([row["faulty"]["metric"], row["clean"]["metric"]], abs=0.05)
