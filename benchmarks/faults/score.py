"""Run a diagnoser over a half of NormFaults, and store what it finds.

    python benchmarks/faults/score.py --half development
    python benchmarks/faults/score.py --half development --diagnoser losses --seeds 0 1 2
    python benchmarks/faults/score.py --half development --fixes

The store, HALF/scores/DIAGNOSER.json, is written after each case, so an interrupted run goes on where it stopped. The
diagnoser sees the setup alone. With --fixes, the trainings with the fault, with the right fix and with the diagnoser's
own fix are compared in place of the findings, in HALF/scores/DIAGNOSER-fixes.json.
"""

import argparse
import contextlib
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from faults.case import FOLDERS, HERE, Case, cases
from faults.fixes import fix
from faults.opponents import DIAGNOSERS, Diagnoser, Found, diagnoser
from faults.tally import is_alarm, is_found, rank, summary
from normscope.environment import environment

SCHEMA = 1
Row = dict[str, Any]


class OutOfTimeError(Exception):
    """A case took longer than the limit."""


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise `OutOfTimeError` after `seconds`; 0 for no limit."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTimeError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def stored(finding: Found) -> dict[str, str]:
    """A finding as JSON."""
    return {"name": finding.name, "severity": finding.severity, "text": finding.text, "fix": finding.fix}


def scored(case: Case, seed: int, diagnose: Diagnoser, limit: int) -> Row:
    """The row of one case and seed. An error of the diagnoser is stored: not found, and no false alarm."""
    setup = case.setup(seed)
    start, error, findings = time.perf_counter(), "", []
    try:
        with limited(limit), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            findings = [stored(finding) for finding in diagnose(setup)]
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"[:300]
    return {
        "name": case.name,
        "problem": case.problem,
        "right": list(case.right),
        "seed": seed,
        "findings": findings,
        "rank": rank(findings, case.right),
        "found": is_found(findings, case.right),
        "alarm": is_alarm(findings),
        "error": error,
        "seconds": round(time.perf_counter() - start, 2),
    }


def run(file: Path, todo: list[tuple[Case, int]], row_of: Callable[[Case, int], Row]) -> list[Row]:
    """Make the rows that `file` does not have yet, and store each; return all of them."""
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    known = {(row["name"], row["seed"]) for row in rows}
    file.parent.mkdir(exist_ok=True)
    for case, seed in todo:
        if (case.name, seed) in known:
            continue
        row = row_of(case, seed)
        rows = sorted([*rows, row], key=lambda row: (row["problem"] is None, row["name"], row["seed"]))
        content = {"schema": SCHEMA, "environment": environment(), "rows": rows}
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(described(row), flush=True)
    return rows


def described(row: Row) -> str:
    """A row as one line."""
    if "findings" not in row:
        return f"{row['name']}, seed {row['seed']}: faulty {row['faulty']}, own fix {row['own']}, fixed {row['clean']}"
    named = ", ".join(f"{finding['name']} [{finding['severity']}]" for finding in row["findings"]) or "nothing"
    right = row["alarm"] is False if row["problem"] is None else row["found"]
    return (
        f"{'ok  ' if right else 'MISS'} {row['name']}, seed {row['seed']}, {row['seconds']} s: {row['error'] or named}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=sorted(FOLDERS), required=True)
    parser.add_argument("--diagnoser", choices=sorted(DIAGNOSERS), default="normscope")
    parser.add_argument("--kind", choices=("faults", "clean"), nargs="+", default=["faults", "clean"])
    parser.add_argument("--case", nargs="+", help="only these cases")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, default=600, help="seconds for one case")
    parser.add_argument("--again", action="store_true", help="forget what is stored")
    parser.add_argument("--fixes", action="store_true", help="compare trainings instead of findings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = HERE / FOLDERS[options.half] / "scores"
    file = folder / f"{options.diagnoser}{'-fixes' if options.fixes else ''}.json"
    if options.again:
        file.unlink(missing_ok=True)
    kinds = ["faults"] if options.fixes else options.kind
    chosen = [case for kind in kinds for case in cases(options.half, kind)]
    if options.case:
        chosen = [case for case in chosen if case.name in options.case]
    todo = [(case, seed) for seed in options.seeds for case in chosen]
    diagnose = diagnoser(options.diagnoser)
    if options.fixes:
        rows = run(file, todo, lambda case, seed: fix(case, seed, options.diagnoser))
        applied = [row for row in rows if row["own"] is not None]
        print(f"own fix applied in {len(applied)} of {len(rows)}, works in {sum(row['works'] for row in applied)}")
        return
    rows = run(file, todo, lambda case, seed: scored(case, seed, diagnose, options.limit))
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
