"""A sweep on a Ray of two workers, one of which is killed in the middle.

    python sweep_on_ray.py FOLDER

A process of its own, so that Ray's threads and warnings stay out of the tests'. Prints the pids of the workers.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import ray
import sweep_plans

import normscope as ns

HERE = Path(__file__).parent


def plan(marks):
    """Both engines train the same description, factory and all."""
    return sweep_plans.plan(
        model=f"{HERE / 'sweep_plans.py'}:marked", arguments={"folder": str(marks)}, epochs=3, threads=1
    )


def kill_a_worker(marks):
    """The first worker to build a network, soon after it has begun."""
    while True:
        workers = [int(path.name) for path in marks.iterdir() if int(path.name) != os.getpid()]
        if workers:
            time.sleep(0.3)
            os.kill(workers[0], signal.SIGKILL)
            return
        time.sleep(0.01)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    marks = folder / "marks"
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=str(folder / "ray"))
    try:
        threading.Thread(target=kill_a_worker, args=(marks,), daemon=True).start()
        ns.sweep(plan(marks), folder, device="cpu", engine="ray", group=4, quiet=True)
        assert ray.is_initialized(), "a Ray that was there before must be left running"
    finally:
        ray.shutdown()
    print(json.dumps([int(path.name) for path in marks.iterdir() if int(path.name) != os.getpid()]))
