"""Killed with SIGKILL at random moments, a sweep loses nothing and trains nothing twice."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sweep_killing
import sweep_plans

import normscope as ns
from normscope.sweeping import Journal

HERE = Path(__file__).parent


@pytest.mark.slow
def test_fifty_kills(tmp_path):
    command = [sys.executable, HERE / "sweep_killing.py", tmp_path / "killed", "50", "0"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    landed = json.loads(done.stdout.splitlines()[-1])
    assert len(landed) == 50
    assert min(landed) >= 1
    plan = sweep_killing.PLAN
    assert sum(landed) < len(plan.cells())
    killed = ns.sweep(plan, tmp_path / "killed", device="cpu", quiet=True, group=1)
    whole = ns.sweep(plan, tmp_path / "whole", device="cpu", quiet=True, group=1)
    assert [found.cell for found in killed.outcomes] == sorted(plan.cells())
    assert sweep_plans.same(killed, whole)
    with Journal(tmp_path / "killed" / "sweep.sqlite", readonly=True) as journal:
        counters = journal.counters(plan)
    # A cell whose training was cut off was begun again, one a life at most; none was begun after its row had landed.
    assert len(counters) == len(plan.cells())
    assert all(count.at_landing == count.by_now for count in counters.values())
    assert sum(count.by_now - 1 for count in counters.values()) <= 50
    (whole_check,) = sqlite3.connect(tmp_path / "killed" / "sweep.sqlite").execute("pragma integrity_check").fetchone()
    assert whole_check == "ok"
