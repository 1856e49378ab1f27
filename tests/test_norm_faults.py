"""The cases of NormFaults: they build, they train, their labels are sound, and their faults hurt."""

import importlib
import json
import math
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import normscope as ns
from docs_pages import ROOT

FOLDER = ROOT / "benchmarks/faults"
FAST = (
    "groups-of-one-value",
    "micro-batches-of-two",
    "target-network-without-statistics",
    "warm-up-that-goes-on",
    "finetuning-all-frozen",
    "gan-layernorm-in-the-discriminator",
    "mlp-ema-of-torch",
    "vae-batchnorm",
)


@pytest.fixture(scope="module")
def bench():
    """The package benchmarks/faults, for this file alone."""
    before, path = set(sys.modules), str(FOLDER.parent)
    sys.path.insert(0, path)
    modules = {name: importlib.import_module(f"faults.{name}") for name in ("case", "costs", "problems", "training")}
    yield SimpleNamespace(**modules)
    sys.path.remove(path)
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "faults":
            del sys.modules[name]


@pytest.fixture(scope="module")
def every(bench):
    return {kind: bench.case.cases("held-out", kind) for kind in ("faults", "clean")}


@pytest.fixture(scope="module")
def stored():
    return json.loads((FOLDER / "held_out/costs.json").read_text(encoding="utf-8"))


def _state(setup):
    return {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}


def test_the_half_has_the_cases_that_it_promises(every):
    faults, clean = every["faults"], every["clean"]
    assert (len(faults), len(clean)) == (32, 50)
    names = [case.name for case in (*faults, *clean)]
    assert len(set(names)) == len(names)
    assert {case.half for case in (*faults, *clean)} == {"held-out"}
    assert all(case.problem is None for case in clean)
    threads = [case.source for case in faults if case.source != "none"]
    assert len(threads) >= 8
    assert all("#" in thread and "/" in thread for thread in threads)


def test_each_problem_that_shows_in_data_has_a_case(bench, every):
    covered = {case.problem for case in every["faults"]}
    assert {name for name, problem in bench.problems.PROBLEMS.items() if problem.data} <= covered


def test_no_fault_case_has_a_problem_that_is_only_a_note(bench, every):
    severities = {bench.problems.PROBLEMS[name].severity for case in every["faults"] for name in case.right}
    assert severities <= {"warning", "error"}
    assert {p.severity for p in bench.problems.PROBLEMS.values()} <= set(bench.problems.SEVERITIES)


def test_an_alias_leads_to_its_problems(bench):
    assert bench.problems.problem_of("batches-differ") == ("batches-differ",)
    assert bench.problems.problem_of("sorted-batches") == ("batches-differ",)
    assert len(bench.problems.problem_of("half-frozen-batchnorm")) == 3
    assert bench.problems.problem_of("nothing") == ()


def test_a_case_with_an_unknown_problem_or_without_a_fix_is_refused(bench):
    for wrong in ({"problem": "bad-luck", "fix": "more luck"}, {"problem": "batches-differ"}, {"fix": "something"}):
        with pytest.raises(ValueError, match="odd"):
            bench.case.Case("odd", "held-out", lambda seed, fault: None, **wrong)


@pytest.mark.slow
def test_every_case_builds_and_can_be_copied(bench, every):
    for case in (*every["faults"], *every["clean"]):
        for setup in (case.setup(0), case.fixed(0)):
            assert isinstance(setup, ns.Setup), case.name
            assert setup.optimizer is not None, case.name
            assert len(setup.batches) == setup.steps * setup.accumulate, case.name
            first, again = next(iter(setup.batches)), next(iter(setup.batches))
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True)), case.name
            at_start = bench.training.evaluate(setup)
            assert math.isfinite(at_start), case.name
            # Whoever trains for a look trains a copy.
            bench.training.train(setup.copied(), 1)
            assert bench.training.evaluate(setup) == at_start, case.name


@pytest.mark.parametrize("name", FAST)
def test_a_step_moves_the_model_and_is_the_same_for_the_same_seed(bench, name):
    case = bench.case.load(name)
    ends = []
    for _ in range(2):
        setup = case.setup(1)
        start = _state(setup)
        losses = bench.training.train(setup, 1)
        assert math.isfinite(losses[0])
        ends.append(_state(setup))
        assert any(not torch.equal(start[key], ends[-1][key]) for key in start)
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_the_loop_does_not_change_the_mode_of_a_layer(bench):
    setup = bench.case.load("finetuning-all-frozen").setup(0)
    norms = [layer for layer in setup.model.modules() if isinstance(layer, nn.BatchNorm1d)]
    before = [layer.running_mean.clone() for layer in norms]
    bench.training.train(setup, 2)
    bench.training.evaluate(setup)
    assert not any(layer.training for layer in norms)
    assert setup.model.training
    assert all(torch.equal(a, layer.running_mean) for a, layer in zip(before, norms, strict=True))


def test_accumulated_gradients_are_those_of_the_whole_batch(bench):
    x, y = torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(0, 1, 4).view(4, 1)
    ends = []
    for parts in (1, 4):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        batches = list(zip(x.split(4 // parts), y.split(4 // parts), strict=True))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        bench.training.train(ns.Setup(model, nn.MSELoss(), batches, optimizer, accumulate=parts), 2)
        ends.append(model.weight.detach())
    torch.testing.assert_close(*ends)


def test_costs_are_stored_for_every_fault_and_every_fault_hurts(bench, every, stored):
    """By the README: four points of accuracy, or a tenth of a loss or an error."""
    rows = {(row["name"], row["seed"]): row for row in stored["rows"] if row["problem"] is not None}
    for case in every["faults"]:
        for seed in (0, 1, 2):
            row = rows[case.name, seed]
            faulty, clean = row["faulty"]["metric"], row["clean"]["metric"]
            assert row["problem"] == case.problem
            assert clean is not None
            if faulty is not None:
                assert clean - faulty >= (0.04 if clean > 0 else 0.1 * abs(clean)), (case.name, seed)
            assert row["clean"]["ms_per_step"] <= 50


@pytest.mark.slow
def test_a_stored_cost_comes_again(bench, stored):
    row = next(row for row in stored["rows"] if (row["name"], row["seed"]) == ("sensors-at-rest", 0))
    again = bench.costs.cost(bench.case.load("sensors-at-rest"), 0)
    for kind in ("faulty", "clean"):
        # Another processor rounds otherwise, and 200 steps amplify that: two points of accuracy.
        assert again[kind]["metric"] == pytest.approx(row[kind]["metric"], abs=0.02)
