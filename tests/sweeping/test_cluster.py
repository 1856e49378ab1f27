"""The same plan here and on a real Ray, a worker of which dies: the same bits."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import sweep_plans

import normscope as ns
from normscope.sweeping import Journal
from normscope.sweeping.cluster import Ray

HERE = Path(__file__).parent


@pytest.mark.slow
def test_two_workers_one_killed_give_the_losses_of_here(tmp_path):
    pytest.importorskip("ray", reason="comes with the extra: pip install 'normscope[ray]'")
    import sweep_on_ray

    # Ray's sockets lie below its folder and have short names only.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        marks = Path(folder, "marks")
        marks.mkdir()
        env = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        env.pop("RAY_ADDRESS", None)
        command = [sys.executable, HERE / "sweep_on_ray.py", folder]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        workers = json.loads(done.stdout.splitlines()[-1])
        assert len(workers) >= 3, "two workers, and one in the place of the killed"
        plan = sweep_on_ray.plan(marks)
        here = ns.sweep(plan, tmp_path, device="cpu", group=4, quiet=True)
        with Journal(Path(folder, "sweep.sqlite"), readonly=True) as journal:
            there = ns.sweeping.PhaseDiagram(plan, tuple(sorted(journal.outcomes(plan).values(), key=lambda o: o.cell)))
            counters = journal.counters(plan)
        assert len(there.outcomes) == len(plan.cells())
        assert sweep_plans.same(here, there)
        assert all(count.at_landing == count.by_now == 1 for count in counters.values())


def test_an_address_asks_for_ray(tmp_path):
    with pytest.raises(ValueError, match="Add engine='ray'"):
        ns.sweep(sweep_plans.plan(), tmp_path, address="auto")
    with pytest.raises(ValueError, match="engine must be one of 'local', 'ray'"):
        ns.sweep(sweep_plans.plan(), tmp_path, engine="rya")


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'normscope\[ray\]'"):
        ns.sweep(sweep_plans.plan(), tmp_path, device="cpu", engine="ray")
    assert not list(tmp_path.iterdir())


class _Cluster:
    """A Ray of one CPU that trains nothing."""

    def __init__(self, joined):
        self.joined, self.down, self.cancelled = joined, False, []

    def is_initialized(self):
        return self.joined

    def init(self, **options):
        self.options = options

    def cluster_resources(self):
        return {"CPU": 1.0}

    def cancel(self, task):
        self.cancelled.append(task)

    def shutdown(self):
        self.down = True

    def wait(self, tasks, num_returns):
        raise KeyboardInterrupt


def test_a_group_that_fits_nowhere_is_refused_here_and_said_on_a_cluster(monkeypatch):
    plan, here, cluster = sweep_plans.plan(threads=2), _Cluster(joined=False), _Cluster(joined=True)
    monkeypatch.setitem(sys.modules, "ray", here)
    with pytest.raises(ValueError, match=r"needs 2 CPU \(1 available\), 0 GPU \(0 available\)\. Lower the plan's"):
        Ray(plan, device="cpu")
    assert here.down
    monkeypatch.setitem(sys.modules, "ray", cluster)
    with pytest.warns(UserWarning, match="waits until the cluster has grown"):
        Ray(sweep_plans.plan(), device="cuda").close()
    assert not cluster.down


def test_an_interrupted_sweep_takes_its_tasks_back(tmp_path, monkeypatch):
    cluster = _Cluster(joined=True)
    cluster.remote = lambda **needs: lambda function: SimpleNamespace(remote=lambda *_: "task")
    monkeypatch.setitem(sys.modules, "ray", cluster)
    with pytest.raises(KeyboardInterrupt):
        ns.sweep(sweep_plans.plan(), tmp_path, device="cpu", engine="ray", quiet=True)
    assert cluster.cancelled == ["task"]
