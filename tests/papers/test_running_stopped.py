"""Runs that are stopped, killed, given up or made by two at once: nothing finished is lost, no process stays."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from normscope.papers import Store, all_experiments, pool
from normscope.papers import running as module
from normscope.papers.experiment import Place, Run
from normscope.papers.running import reproduce

SLEEPER = """
import os, pathlib, sys, time
from normscope.cli import main
from normscope.papers import all_experiments

def run(settings, seed, place):
    pathlib.Path(os.environ["PIDS"], str(os.getpid())).touch()
    for step in range(6000 if seed else 1):
        time.sleep(0.01)
        place.tick(step)
    return {"error": {}}

all_experiments()["decoupling"].__dict__["run"] = run
if __name__ == "__main__":
    sys.argv = ["normscope", "reproduce", "decoupling", "--device", "cpu", "--out", "out", *sys.argv[1:]]
    main()
"""


def _start(folder, *arguments):
    """A call whose first seed ends at once and whose others take a minute; the processes that run leave their ids."""
    (folder / "pids").mkdir()
    (folder / "sleeper.py").write_text(SLEEPER)
    command = [sys.executable, "sleeper.py", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=os.environ | {"PIDS": str(folder / "pids")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _alive(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def _until(condition, seconds=60):
    end = time.time() + seconds
    while not condition() and time.time() < end:
        time.sleep(0.02)
    return condition()


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("arguments", "sent", "status"),
    [
        pytest.param((), signal.SIGINT, 1, marks=pytest.mark.slow),
        pytest.param((), signal.SIGTERM, 1, marks=pytest.mark.slow),
        pytest.param(("--jobs", "2"), signal.SIGINT, 1, marks=pytest.mark.slow),
        pytest.param(("--jobs", "2"), signal.SIGTERM, 1, marks=pytest.mark.slow),
        pytest.param(("--jobs", "2"), signal.SIGKILL, -9, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_call_keeps_what_is_finished_and_leaves_no_process(arguments, sent, status, tmp_path):
    call = _start(tmp_path, *arguments)
    store, experiment = Store(tmp_path / "out"), all_experiments()["decoupling"]
    workers = 2 if arguments else 1
    try:
        assert _until(
            lambda: (
                len(store.runs(experiment, "units", "small")) == 1
                and len(list((tmp_path / "pids").iterdir())) == workers
            )
        )
        call.send_signal(sent)
        _, said = call.communicate(timeout=30)
    finally:
        call.kill()
    assert call.returncode == status
    assert ("the same command goes on from there" in said) == (sent != signal.SIGKILL)
    assert "Traceback" not in said
    pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    assert _until(lambda: not any(map(_alive, pids)), 20)
    assert [run.seed for run in store.runs(experiment, "units", "small")] == [0]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"decoupling.json"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_a_process_that_is_killed_ends_the_call_with_one_message(tmp_path):
    call = _start(tmp_path, "--jobs", "2")
    store, experiment = Store(tmp_path / "out"), all_experiments()["decoupling"]
    pids = tmp_path / "pids"
    try:
        assert _until(lambda: len(store.runs(experiment, "units", "small")) == 1 and len(list(pids.iterdir())) == 2)
        os.kill(int(next(pids.iterdir()).name), signal.SIGKILL)
        _, said = call.communicate(timeout=30)
    finally:
        call.kill()
    assert (call.returncode, "with fewer than 2 --jobs" in said, "Traceback" in said) == (2, True, False)
    assert _until(lambda: not any(_alive(path.name) for path in pids.iterdir()), 20)


ADDER = """
import sys
from normscope.papers import Store, all_experiments
from normscope.papers.experiment import Run
first = int(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for seed in range(first, first + 25):
    Store("out").add(all_experiments()["gradients"], "small", Run("draws", seed, {"a": [1.0] * 2000}, 0.0, {}))
"""


@pytest.mark.slow
def test_of_two_processes_that_add_neither_loses_a_seed(tmp_path):
    calls = [
        subprocess.Popen(
            [sys.executable, "-c", ADDER, str(first)],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in (0, 100)
    ]
    for call in calls:
        assert call.stdout.readline() == "ready\n"
    for call in calls:
        call.stdin.write("\n")
        call.stdin.flush()
    for call in calls:
        call.communicate(timeout=60)
    found = [run.seed for run in Store(tmp_path / "out").runs(all_experiments()["gradients"], "draws", "small")]
    assert found == [*range(25), *range(100, 125)]


def test_what_a_kill_left_half_written_is_removed(tmp_path):
    store, experiment = Store(tmp_path), all_experiments()["gradients"]
    left = tmp_path / ".gradients-01234567.new.json"
    left.write_text('{"schema":')
    os.utime(left, (0, 0))
    store.add(experiment, "small", Run("draws", 0, {}, 0.0, {}))
    assert [path.name for path in tmp_path.iterdir()] == ["gradients.json"]
    assert json.loads(store.path(experiment).read_text())["runs"][0]["seed"] == 0


def test_runs_that_cannot_end_in_time_are_not_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_check_data", lambda todo, root: None)
    words = r"shortest of 6 runs takes about 4 minutes on such a device.*--minutes 2 is lost.*--yes"
    with pytest.raises(ValueError, match=words):
        reproduce("fig-4", out=tmp_path, device="cpu", minutes=2)
    with pytest.raises(ValueError, match="minutes must be above 0; got 0"):
        reproduce("gradients", out=tmp_path, device="cpu", minutes=0)


def test_a_short_run_is_made_where_a_long_one_does_not_fit(tmp_path, monkeypatch):
    """Seconds of another experiment say nothing; those known of its own do."""
    made = []

    def run(name, cell, *rest):
        made.append(name)
        return Run(cell, rest[1], {}, 30.0 if name == "decoupling" else 1.0, {})

    monkeypatch.setattr(pool, "run_job", run)
    reproduce("decoupling", "gradients", "fig-9", out=tmp_path, seeds=2, device="cpu", minutes=0.4)
    assert made == ["decoupling", "gradients", "gradients"]


def test_a_given_up_network_leaves_torch_as_it_was():
    import torch

    def tick(step):
        raise pool.OutOfTime

    torch.set_num_threads(2)
    experiment = all_experiments()["dln"]
    with pytest.raises(pool.OutOfTime):
        experiment.run(experiment.plan("none", "small"), 0, Place(tick=tick))
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
