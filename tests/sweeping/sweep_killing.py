"""Starts a sweep, kills it with SIGKILL after at least one new row has landed, at a random moment; again and again.

    python sweep_killing.py FOLDER KILLS SEED

A process of its own: it forks the sweeps, so that torch is imported once. Prints the rows that each life landed.
"""

import os
import random
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import sweep_plans

import normscope as ns

PLAN = sweep_plans.plan(
    learning_rates=ns.sweeping.grid(count=20, log10_from=-3, log10_to=1), values=(0.5, 1.0, 2.0, 4.0), epochs=1
)


def rows(path):
    if not path.exists():
        return 0
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as reader:
        return reader.execute("select count(*) from rows").fetchone()[0]


def life(folder, wait):
    """Rows landed by one sweep that is killed `wait` seconds after its first."""
    path = folder / "sweep.sqlite"
    before = rows(path)
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        ns.sweep(PLAN, folder, device="cpu", quiet=True, group=1)
        os._exit(0)
    while rows(path) == before:
        assert os.waitpid(child, os.WNOHANG) == (0, 0), "the sweep ended by itself"
        time.sleep(0.01)
    time.sleep(wait)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, "the sweep ended before it was killed"
    return rows(path) - before


if __name__ == "__main__":
    # What a sweep imports on its way is there before the first fork.
    ns.sweep(sweep_plans.plan(learning_rates=(0.01,)), f"{sys.argv[1]}-before", device="cpu", quiet=True)
    draw = random.Random(int(sys.argv[3]))
    print([life(Path(sys.argv[1]), draw.uniform(0, 0.05)) for _ in range(int(sys.argv[2]))])
