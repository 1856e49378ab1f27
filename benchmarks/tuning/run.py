"""Run the race: the grid, short rehearsals, optimizers without a rate, searches and the trainings that follow.

    python benchmarks/tuning/run.py --what grid --jobs 16 --store DIR --seconds 520
    python benchmarks/tuning/run.py --what grid short free --tasks all --jobs 16 --store DIR --seconds 520
    python benchmarks/tuning/run.py --what name --rules tune asha --store DIR
    python benchmarks/tuning/run.py --what gen named --tasks all --jobs 16 --store DIR --seconds 520

One process a core. Finished runs in the store are skipped. At the time limit the command stops and prints how many are
left.
"""

import argparse
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from grid import GROWTHS, RATES, SEEDS, Cell, growth, score
from methods import OURS, calibrated_names
from opponents import entrants, gen, replacing
from opponents.entrants import training_of
from opponents.replacing import SETTINGS
from pool import Pool
from regret import curves
from store import Store
from task import Task, load, names
from training import train

SHORT_STEPS = (20, 50, 100)
LONGEST = 12.0


def work(cell: Cell) -> dict[str, Any]:
    """The record of one cell; called in a worker."""
    task = load(cell.task)
    where = {"key": cell.key, "what": cell.what, "rule": cell.rule, "task": cell.task, "seed": cell.seed, "lr": cell.lr}
    where |= {"optimizer": task.optimizer, "torch": torch.__version__}
    began, cpu = time.perf_counter(), time.process_time()
    record = _named(task, cell) if cell.what == "name" else train(task, cell.seed, cell.lr, **_options(task, cell))
    took = {"seconds": round(time.process_time() - cpu, 2), "wall_seconds": round(time.perf_counter() - began, 2)}
    return {**where, **record, **took}


def _named(task: Task, cell: Cell) -> dict[str, Any]:
    entrant = entrants.find(cell.rule)
    return entrant(task, task.make(cell.seed), cell.seed).plain()


def _options(task: Task, cell: Cell) -> dict[str, Any]:
    options: dict[str, Any] = {"steps": cell.steps, "curves": cell.what in ("grid", "short")}
    if cell.what == "short":
        options["schedule"] = "cosine"
    if cell.what == "free":
        options["make_rule"] = functools.partial(replacing.make_rule, cell.rule, cell.lr)
    if cell.what == "gen":
        options["make_rule"] = functools.partial(gen.make_rule, cell.lr)
    return options


class Grid:
    """The cells of the grid that are not yet in the store; grows as grids become complete."""

    def __init__(self, tasks: list[str], store: Store) -> None:
        self.store = store
        self.rates = {task: list(RATES[load(task).optimizer]) for task in tasks}
        self.grown = dict.fromkeys(tasks, 0)
        for task in tasks:
            self.grow(task)

    def cells(self) -> list[Cell]:
        """All cells, complete or not, seed by seed."""
        return [
            Cell("grid", task, seed, lr) for seed in SEEDS for task, rates in self.rates.items() for lr in sorted(rates)
        ]

    def after(self, cell: Cell) -> list[Cell]:
        """The cells that a finished cell gives rise to."""
        return self.grow(cell.task)

    def grow(self, task: str) -> list[Cell]:
        """The cells that the rule adds to a task now; none while its grid is incomplete."""
        added: list[Cell] = []
        while self.grown[task] < GROWTHS:
            cells = [Cell("grid", task, seed, lr) for seed in SEEDS for lr in self.rates[task]]
            if not all(cell.key in self.store for cell in cells):
                break
            rates = growth({(c.seed, c.lr): score(self.store.records[c.key]) for c in cells})
            if not rates:
                break
            self.grown[task] += 1
            self.rates[task] += rates
            added += [Cell("grid", task, seed, lr) for seed in SEEDS for lr in rates]
        return added


def short_cells(tasks: list[str]) -> list[Cell]:
    """Rehearsals of a few steps, each with a whole cosine, at every rate of the first grid."""
    return [
        Cell("short", task, seed, lr, steps)
        for seed in SEEDS
        for steps in SHORT_STEPS
        for task in tasks
        for lr in RATES[load(task).optimizer]
    ]


def free_cells(tasks: list[str]) -> list[Cell]:
    """The optimizers without a rate: as shipped with every seed, then the other settings, seed by seed."""
    shipped = [Cell("free", task, seed, SETTINGS[n][0], rule=n) for seed in SEEDS for n in SETTINGS for task in tasks]
    others = [
        Cell("free", task, seed, setting, rule=n)
        for seed in SEEDS
        for n in SETTINGS
        for setting in SETTINGS[n][1:]
        for task in tasks
    ]
    return shipped + others


def gen_cells(tasks: list[str]) -> list[Cell]:
    """GeN with each of its settings."""
    return [
        Cell("gen", task, seed, setting, gen.left(load(task)), "gen")
        for setting in gen.SETTINGS
        for seed in SEEDS
        for task in tasks
    ]


def name_cells(tasks: list[str], rules: list[str], seeds: int) -> list[Cell]:
    """The searches of entrants, the judged seeds first."""
    return [Cell("name", task, seed, 0.0, rule=rule) for rule in rules for seed in range(seeds) for task in tasks]


def named_cells(tasks: list[str], store: Store) -> list[Cell]:
    """The trainings at the rates that entrants have named, each once; ours first."""
    named = [record for record in store.records.values() if record["what"] == "name" and record["seed"] in SEEDS]
    named += calibrated_names(curves(store.records), store.records)
    named.sort(key=lambda record: record["rule"] != OURS)
    cells = [training_of(record) for record in named if record["task"] in tasks]
    return list({cell.key: cell for cell in cells if cell is not None}.values())


def run(
    cells: list[Cell], store: Store, jobs: int, until: float, after: Callable[[Cell], list[Cell]] = lambda cell: []
) -> int:
    """Make cells in this order until none is left or the time is over; returns how many are left.

    after: called with each finished cell, returns cells to make next.
    """
    waiting = [cell for cell in cells if cell.key not in store]
    pool, made, errors = Pool(work, jobs), 0, 0
    began = reported = time.monotonic()
    try:
        while (waiting or pool.busy) and time.monotonic() < until:
            while waiting and pool.room() and time.monotonic() < until - LONGEST:
                pool.start(waiting.pop(0))
            if not pool.busy:
                break
            for cell, record, error in pool.results(timeout=1.0):
                if record is None:
                    errors += 1
                    print(f"{cell.key}: {error}", flush=True)
                    continue
                made += 1
                store.add(record)
                waiting[:0] = [new for new in after(cell) if new.key not in store]
            if time.monotonic() - reported > 20:
                reported = time.monotonic()
                print(f"{reported - began:.0f} s: {made} made, {len(waiting)} wait", flush=True)
    finally:
        pool.close()
    left = len(waiting) + len(pool.busy)
    print(f"{made} runs made in {time.monotonic() - began:.0f} s, {left} left, {errors} errors", flush=True)
    return left


PHASES = ("grid", "short", "free", "gen", "name", "named")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", choices=PHASES, required=True)
    parser.add_argument("--tasks", nargs="+", default=["development"], help="development, held-out, all, or names")
    parser.add_argument("--rules", nargs="+", default=["tune"], help="entrants whose searches --what name makes")
    parser.add_argument(
        "--seeds", type=int, default=len(SEEDS), help="seeds of --what name; the first three are judged"
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=520.0)
    args = parser.parse_args()
    until = time.monotonic() + args.seconds
    groups = {"development": names("development"), "held-out": names("held-out")}
    groups["all"] = groups["development"] + groups["held-out"]
    tasks = [name for given in args.tasks for name in groups.get(given, [given])]
    store = Store(args.store)
    print(f"{len(tasks)} tasks, {len(store.records)} runs in the store", flush=True)
    for what in args.what:
        if what == "grid":
            grid = Grid(tasks, store)
            run(grid.cells(), store, args.jobs, until, grid.after)
        else:
            cells = {
                "short": lambda: short_cells(tasks),
                "free": lambda: free_cells(tasks),
                "gen": lambda: gen_cells(tasks),
                "name": lambda: name_cells(tasks, args.rules, args.seeds),
                "named": lambda: named_cells(tasks, store),
            }[what]()
            run(cells, store, args.jobs, until)


if __name__ == "__main__":
    main()
