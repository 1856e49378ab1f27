"""The scorer of NormFaults: which findings count, intervals, resuming, errors, fixes."""

import ast
import importlib
import json
import math
import sys
import time

import pytest

from docs_pages import ROOT

sys.path.append(str(ROOT / "benchmarks"))
CASE, SCORE, TALLY, FIXES, OPPONENTS = (
    importlib.import_module(f"faults.{name}") for name in ("case", "score", "tally", "fixes", "opponents")
)
FAULT, CLEAN = CASE.load("glowing-border"), CASE.load("usual-mlp-batchnorm")


def finding(name, severity="warning"):
    return {"name": name, "severity": severity}


def scored(case, *findings, limit=0):
    return SCORE.scored(case, 0, lambda setup: [OPPONENTS.Found(*each) for each in findings], limit)


def test_a_right_finding_counts_as_first_or_second_and_as_a_warning():
    right = ("constant-channels", "shifted-evaluation-data")
    other, first = finding("dead-channels"), finding("constant-channels")
    assert TALLY.is_found([other, first], right)
    assert TALLY.is_found([finding("shifted-evaluation-data", "error")], right)
    assert TALLY.is_found([finding("domain-shift")], right)  # an alias of shifted-evaluation-data
    assert not TALLY.is_found([other, other, first], right)
    assert not TALLY.is_found([finding("constant-channels", "note")], right)
    assert TALLY.rank([other, other, first], right) == 3
    assert TALLY.rank([other], right) is None


def test_wilsons_ends_are_where_the_share_is_just_not_rejected():
    for hits, trials in ((0, 10), (9, 10), (50, 50), (20.5, 44)):
        for end in TALLY.wilson(hits, trials):
            if 0 < end < 1:
                deviation = abs(hits / trials - end) / math.sqrt(end * (1 - end) / trials)
                assert deviation == pytest.approx(1.96)


def test_a_summary_counts_faults_by_share_and_clean_setups_once():
    row = {"problem": "dead-channels", "error": "", "seconds": 1.0, "alarm": True}
    rows = [
        {**row, "name": "a", "found": True},
        {**row, "name": "a", "found": False},
        {**row, "name": "b", "found": True, "seconds": 5.0},
        {**row, "name": "c", "problem": None, "found": False, "alarm": True},
        {**row, "name": "c", "problem": None, "found": False, "alarm": False},
        {**row, "name": "d", "problem": None, "found": False, "alarm": False, "error": "ValueError: no"},
    ]
    found = TALLY.summary(rows)
    assert found["recall"] == 0.75
    assert found["missed"] == ["a"]
    assert found["false_alarms"] == ["c"]
    assert found["clean"] == 2
    assert found["errors"] == ["d"]
    assert found["seconds_largest"] == 5.0


def test_a_note_on_a_clean_setup_is_no_alarm():
    assert not scored(CLEAN, ("bias-before-normalizer", "note"))["alarm"]
    assert scored(CLEAN, ("dead-channels", "warning"))["alarm"]


def test_an_error_and_a_timeout_are_stored_and_not_found():
    def fail(setup):
        raise RuntimeError("no such layer")

    row = SCORE.scored(FAULT, 0, fail, 0)
    assert row["error"] == "RuntimeError: no such layer"
    assert not row["found"]
    row = SCORE.scored(FAULT, 0, lambda setup: time.sleep(30), 1)
    assert "longer than 1 s" in row["error"]
    assert row["seconds"] < 10


def test_a_run_goes_on_where_it_stopped(tmp_path, capsys):
    file, seen = tmp_path / "scores" / "mine.json", []

    def row_of(case, seed):
        seen.append((case.name, seed))
        return scored(case, ("constant-channels", "error")) | {"seed": seed}

    SCORE.run(file, [(FAULT, 0)], row_of)
    rows = SCORE.run(file, [(FAULT, 0), (CLEAN, 0), (FAULT, 1)], row_of)
    assert seen == [("glowing-border", 0), ("usual-mlp-batchnorm", 0), ("glowing-border", 1)]
    assert json.loads(file.read_text(encoding="utf-8"))["rows"] == rows
    assert "MISS usual-mlp-batchnorm" in capsys.readouterr().out


def test_every_name_that_the_losses_give_is_a_problem():
    losses = OPPONENTS.diagnoser("losses")
    for case in (FAULT, CLEAN):
        for each in losses(case.setup(0)):
            assert TALLY.rank([finding(each.name)], [each.name]) == 1


def test_a_fix_that_can_be_applied_is_trained(monkeypatch):
    """The right fix as the diagnoser's own gives the metric of the clean twin; without `apply` there is none."""
    found = OPPONENTS.Found("constant-channels", "error", "", "a larger eps", lambda setup: FAULT.fixed(0))
    monkeypatch.setattr(FIXES, "diagnoser", lambda name: lambda setup: [found])
    row = FIXES.fix(FAULT, 0, "any")
    assert row["own"] == pytest.approx(row["clean"], abs=0.03)
    assert row["works"]
    monkeypatch.setattr(FIXES, "diagnoser", lambda name: lambda setup: [OPPONENTS.Found("dead-channels", "error")])
    assert FIXES.fix(FAULT, 0, "any")["own"] is None


def test_merged_findings_have_one_entry_a_name_and_the_most_severe_first():
    names = [("a", "note"), ("b", "warning"), ("a", "error"), ("b", "note"), ("c", "warning")]
    found = OPPONENTS.merged(OPPONENTS.Found(*each) for each in names)
    assert [(each.name, each.severity) for each in found] == [("a", "error"), ("b", "warning"), ("c", "warning")]


def test_opponents_are_mapped_to_problems_that_exist():
    """The maps are read without the tools, which are not installed here."""
    maps = 0
    for module in set(OPPONENTS.DIAGNOSERS.values()):
        tree = ast.parse((ROOT / f"benchmarks/faults/opponents/{module}.py").read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Assign) and node.targets[0].id == "PROBLEMS":
                assert set(ast.literal_eval(node.value).values()) <= set(CASE.PROBLEMS)
                maps += 1
    assert maps == 4
