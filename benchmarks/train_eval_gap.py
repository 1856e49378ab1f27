"""The gains that `train_eval_gap` predicts for twelve networks, against the gains of the interventions themselves.

    OMP_NUM_THREADS=1 python benchmarks/train_eval_gap.py [--processes 2] [--development] [--out FILE]

Each network (benchmarks/train_eval_gap_networks.py) is trained briefly. The predictions are made from training batches
that come in another order, and once more with evaluation set A. The gains are then realised and measured on evaluation
set B, which no prediction has seen:

- population_statistics: `torch.optim.swa_utils.update_bn` on a copy, with further training batches.
- momentum: the same training, from the same start and with the same batches, with the other momentum.
- averaged_buffers: `update_bn` on a copy of the averaged network.
- larger_batch: four batches in each step, normalized together instead of each alone.
- group_norm: GroupNorm in BatchNorm's places, four batches in each step, each through the network alone.

Rules, fixed before the run:

- A gain is in points (percentage points of accuracy). Its error is allowed to be 10 % of the realised gain or 0.3
  points, whichever is more. A fix passes if the median over the twelve networks of error / allowed is at most 1. This
  is judged for predictions from training data alone, and separately for those with evaluation set A.
- The last two fixes predict a sign. The networks they are compared with have population statistics, since running
  statistics have fixes of their own. Two seeds: the realised sign is 0 if the seeds disagree or if the mean gain is
  below 0.5 points. A prediction is right if the signs are equal, and wrong if they are opposite; else it is undecided.
- The thresholds of the predicted signs stand in `normscope/diagnosis/gap_fixes.py`.
"""

import argparse
import copy
import json
import multiprocessing
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from train_eval_gap_networks import DEVELOPMENT, TWELVE, Case, batches, evaluated, trained

from normscope.diagnosis import train_eval_gap
from normscope.results import plain
from normscope.results.environment import environment

OUT = Path(__file__).parent / "results/train-eval-gap-cpu.json"
SHARE, POINTS = 0.1, 0.3
SEEDS, NO_SIGN, JOINED = (0, 1), 0.5, 4
# Samples that a prediction is made from, and the largest number of batches.
SAMPLES, MOST = 4096, 600
GAINS = ("population_statistics", "momentum", "averaged_buffers")
SIGNS = ("larger_batch", "group_norm")


def allowed(realised: float) -> float:
    """The error allowed for a predicted gain, in points."""
    return max(SHARE * abs(realised), POINTS)


def judged(case: Case) -> dict[str, Any]:
    """Predicted and realised gains of one network."""
    torch.set_num_threads(1)
    torch.manual_seed(SEEDS[0])
    started = time.process_time()
    setup = trained(case, SEEDS[0])
    training_seconds = time.process_time() - started
    count = min(MOST, SAMPLES // case.batch)
    looked_at = replace(setup, batches=batches(case, "training", SEEDS[0], case.batch, count, order=101))
    found = train_eval_gap(looked_at, n_batches=count, momenta=(case.other,))
    a = batches(case, "A", SEEDS[0], 1000, 12, order=102)
    with_a = train_eval_gap(replace(looked_at, eval_batches=a), n_batches=count, momenta=(case.other,))
    realised = _realised(case, setup, count)
    gains = {}
    for name in GAINS:
        full = f"momentum_{case.other:g}" if name == "momentum" else name
        alone, seen = found.fix(full), with_a.fix(full)
        gains[name] = {
            "realised": realised[name],
            "training": alone.gain.metric,
            "training_stderr": alone.gain.metric_stderr,
            "with_a": seen.gain.metric,
            "with_a_stderr": seen.gain.metric_stderr,
        }
    row = {
        "case": asdict(case),
        "training_seconds": training_seconds,
        "gap": asdict(with_a.gap),
        "parts": {part.name: asdict(part.change) for part in with_a.parts},
        "eval_points": realised["base"],
        "gains": gains,
        "signs": _signs(case, count),
    }
    return row | {"seconds": time.process_time() - started}


def _realised(case: Case, setup: Any, count: int) -> dict[str, float]:
    seed = SEEDS[0]
    further = batches(case, "training", seed, case.batch, count, order=103)
    base = evaluated(setup.model, case, "B", seed)[1]
    model, averaged = copy.deepcopy(setup.model), copy.deepcopy(setup.averaged_model)
    before = evaluated(averaged, case, "B", seed)[1]
    for network in (model, averaged):
        torch.optim.swa_utils.update_bn(further, network)
    other = trained(case, seed, momentum=case.other)
    return {
        "base": base,
        "population_statistics": evaluated(model, case, "B", seed)[1] - base,
        "momentum": evaluated(other.model, case, "B", seed)[1] - base,
        "averaged_buffers": evaluated(averaged, case, "B", seed)[1] - before,
    }


def _signs(case: Case, count: int) -> dict[str, Any]:
    """Predicted and realised signs; steps are halved, since each has four batches."""
    case = replace(case, steps=case.steps // 2)
    changes: dict[str, list[float]] = {name: [] for name in SIGNS}
    predicted: dict[str, int] = {}
    for seed in SEEDS:
        further = batches(case, "training", seed, case.batch, count, order=103)
        small = trained(case, seed, apart=JOINED)
        if not predicted:
            found = train_eval_gap(replace(small, batches=further), n_batches=count, momenta=())
            predicted = {name: found.fix(name).sign for name in SIGNS}
        torch.optim.swa_utils.update_bn(further, small.model)
        base = evaluated(small.model, case, "B", seed)[1]
        large = trained(case, seed, joined=JOINED).model
        torch.optim.swa_utils.update_bn(further, large)
        group = trained(case, seed, norm="group", apart=JOINED).model
        for name, model in zip(SIGNS, (large, group), strict=True):
            changes[name].append(evaluated(model, case, "B", seed)[1] - base)
    return {
        name: {"predicted": predicted[name], "realised": _sign(gains), "gains": gains}
        for name, gains in changes.items()
    }


def _sign(gains: list[float]) -> int:
    mean, agree = float(np.mean(gains)), len({np.sign(gain) for gain in gains}) == 1
    return int(np.sign(mean)) if agree and abs(mean) >= NO_SIGN else 0


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The verdicts by the rules above."""
    found: dict[str, Any] = {}
    for name in GAINS:
        for data in ("training", "with_a"):
            pairs = [(row["gains"][name][data], row["gains"][name]["realised"]) for row in rows]
            errors = [abs(predicted - realised) for predicted, realised in pairs]
            ratios = [error / allowed(pair[1]) for error, pair in zip(errors, pairs, strict=True)]
            found[f"{name}/{data}"] = {
                "median_error": float(np.median(errors)),
                "median_ratio": float(np.median(ratios)),
                "within": sum(ratio <= 1 for ratio in ratios),
                "passes": bool(np.median(ratios) <= 1),
            }
    for name in SIGNS:
        pairs = [(row["signs"][name]["predicted"], row["signs"][name]["realised"]) for row in rows]
        found[name] = {
            "right": sum(a == b for a, b in pairs),
            "wrong": sum(a * b < 0 for a, b in pairs),
            "undecided": sum(a != b and a * b == 0 for a, b in pairs),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--development", action="store_true")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for row in pool.imap(judged, DEVELOPMENT if args.development else TWELVE):
            rows.append(row)
            print(row["case"]["name"], json.dumps(row["gains"]), json.dumps(row["signs"]), row["seconds"], flush=True)
            held = {"schema": 1, "environment": environment(), "summary": summary(rows), "rows": rows}
            args.out.write_text(json.dumps(plain(held), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
