"""The same plan here and on a real Ray, a worker of which dies: the same bits."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import sweep_plans

import normscope as ns
from normscope.sweeping import Journal

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
