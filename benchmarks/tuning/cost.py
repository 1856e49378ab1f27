"""The cost of `tune`, as predicted and as it was, on development tasks of the race.

    python benchmarks/tuning/cost.py --out benchmarks/tuning/results

Writes cost.json: for each task, without and with held-out batches, the passes and seconds that `Tuning.cost` predicts
for the first wave and at most, and those used. Passes are predicted before anything is trained, seconds by the pace of
the first steps of the first rehearsal. Of three tunings the one with the median duration is kept; passes are the same.
Needs the data of the race (`data.py`).
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from task import Task, load

import normscope as ns
from normscope.results.environment import environment

TASKS = (
    "digits_mlp_batchnorm",
    "digits_cnn_batch_of_8",
    "mnist_cnn_batchnorm",
    "cifar_mixer",
    "signals_lstm",
    "table_regression",
    "text_layernorm",
    "vae",
)
REPEATS = 3


def row(task: Task, judged: bool) -> dict[str, Any]:
    """The cost of one tuning, with held-out batches if `judged`."""
    parts = task.make(0)
    tuning = ns.tune(
        parts.model,
        parts.loss_fn,
        parts.batches,
        task.optimizer_of(parts.model, 1e-3),
        steps=task.steps,
        schedule=task.schedule,
        forward=parts.forward,
        eval_batches=parts.eval_batches if judged else None,
    )
    cost = tuning.cost
    return {
        "task": task.name,
        "steps": task.steps,
        "held_out": judged,
        "rehearsals": len(tuning.rehearsals),
        "passes_predicted": cost.passes_predicted,
        "passes_used": cost.passes_used,
        "share": cost.share,
        "seconds_predicted": cost.seconds_predicted,
        "seconds_used": cost.seconds_used,
    }


def median(task: Task, judged: bool) -> dict[str, Any]:
    """The row with the median duration of `REPEATS`."""
    rows = [row(task, judged) for _ in range(REPEATS)]
    return sorted(rows, key=lambda one: one["seconds_used"])[REPEATS // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    row(load(TASKS[0]), judged=True)  # the first tuning of a process also loads torch's kernels
    rows = [median(load(name), judged) for name in TASKS for judged in (False, True)]
    result = {"schema": 1, "environment": environment(), "load": load_before, "rows": rows}
    (args.out / "cost.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
