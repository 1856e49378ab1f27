"""Train every fault of a half with and without its fault, and store what it costs in HALF/costs.json.

    cd benchmarks
    python -m faults.costs --half held-out --seeds 0

The store is written after each case, so an interrupted run goes on where it stopped; --again starts from nothing.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

from faults.case import FOLDERS, HERE, Case, cases
from faults.training import evaluate, train
from normscope import Setup
from normscope.results.environment import environment

SCHEMA = 1


def trained(setup: Setup) -> dict[str, Any]:
    """The metric after training, the first and the last loss, milliseconds of processor time for a step."""
    start = time.process_time()
    losses = train(setup)
    seconds = time.process_time() - start
    found = {"metric": evaluate(setup), "first_loss": losses[0], "last_loss": losses[-1]}
    numbers = {name: round(value, 5) if math.isfinite(value) else None for name, value in found.items()}
    return numbers | {"steps": len(losses), "ms_per_step": round(1000 * seconds / len(losses), 1)}


def cost(case: Case, seed: int) -> dict[str, Any]:
    """The trainings of one seed, faulty and clean; a clean case has one training."""
    row: dict[str, Any] = {"name": case.name, "problem": case.problem, "seed": seed}
    if case.problem is not None:
        row["faulty"] = trained(case.setup(seed))
    return row | {"clean": trained(case.fixed(seed))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=sorted(FOLDERS), default="held-out")
    parser.add_argument("--kind", choices=("faults", "clean"), nargs="+", default=["faults", "clean"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--again", action="store_true", help="forget what is stored")
    options = parser.parse_args()
    file: Path = HERE / FOLDERS[options.half] / "costs.json"
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() and not options.again else []
    known = {(row["name"], row["seed"]) for row in rows}
    for seed in options.seeds:
        for case in (case for kind in options.kind for case in cases(options.half, kind)):
            if (case.name, seed) in known:
                continue
            row = cost(case, seed)
            rows = sorted([*rows, row], key=lambda row: (row["problem"] is None, row["name"], row["seed"]))
            stored = {"schema": SCHEMA, "half": options.half, "environment": environment(), "rows": rows}
            file.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
            metrics = [f"{kind} {row[kind]['metric']}" for kind in ("faulty", "clean") if kind in row]
            print(f"{case.name}, seed {seed}: {', '.join(metrics)}", flush=True)


if __name__ == "__main__":
    main()
