"""`normscope sweep` as a person meets it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from normscope.sweeping import PhaseDiagram

PLAN = """
model = "MLP"
data = "digits"
momentum = 0.9
epochs = 1
learning_rates = [0.001, 0.1, 30.0]
values = { from = 0.5, to = 2.0, count = 2 }
[arguments]
d_in = 64
width = 16
norm = "batch"
[data_options]
seed = 0
"""
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
ENV = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}


def run(*arguments, cwd):
    command = [sys.executable, "-m", "normscope", "sweep", *arguments]
    return subprocess.run(command, cwd=cwd, env=ENV, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_plan_file_becomes_a_phase_diagram(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    found = run("plan.toml", "--out", "runs", "--device", "cpu", "--quiet", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "6/6 cells" in found.stderr
    assert "Trained stacked." in found.stdout
    (stored,) = (tmp_path / "runs").glob("phase-*.json")
    assert len(PhaseDiagram.load(stored).outcomes) == 6
    again = run("plan.toml", "--out", "runs", "--device", "cpu", "--no-lines", cwd=tmp_path)
    assert again.returncode == 0
    assert "cells" not in again.stdout
    (tmp_path / "plan.toml").write_text(PLAN.replace("epochs = 1", "epochs = 0").replace("MLP", "MPL"))
    wrong = run("plan.toml", "--out", "runs", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "epochs is an integer from 1 on; got 0" in wrong.stderr
    assert "Traceback" not in wrong.stderr


@pytest.mark.slow
def test_ctrl_c_says_that_what_is_done_is_kept(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN.replace("epochs = 1", "epochs = 2000"))
    # A suite started in the background hands down an ignored SIGINT.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "normscope", "sweep", "plan.toml"]
    command += ["--device", "cpu", "--group", "2", "--quiet"]
    process = subprocess.Popen(command, cwd=tmp_path, env=ENV, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "normscope-sweep" / "sweep.sqlite").exists():
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Finished trainings are kept" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_the_first_example_runs_as_it_stands(tmp_path):
    found = run(str(EXAMPLES / "sweep_digits.toml"), "--device", "cpu", "--quiet", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "measured: training survives to" in found.stdout
