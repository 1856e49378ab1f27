"""Random networks: is the measured lambda_max inside the range that `predict` states (`Prediction.calibrated_range`)?

    OMP_NUM_THREADS=1 python benchmarks/calibration.py --draw 1 --count 150 [--out benchmarks/results/calibration.json]

Each network is drawn from a seed of its own: family, normalizer, activation, depth, widths, input width, batch,
outputs, initialization, gamma, loss, and how statistics are read. lambda_max is measured (Gauss-Newton, `ns.measure`)
on white inputs over three seeds of weights and inputs; the ratio is of the mean over seeds to the mean prediction.
`inside` says whether it is in the stated range, `refused` whether predict states no usable one. The rules in
`prediction/calibrated_range.py` were fitted on draw 1 and judged once on draw 2.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import normscope as ns
from normscope.results.environment import environment

SEEDS = 3
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "ReLU": nn.ReLU, "tanh": nn.Tanh, "hardtanh": nn.Hardtanh, "sigmoid": nn.Sigmoid, "ELU": nn.ELU, "GELU": nn.GELU,
    "SiLU": nn.SiLU, "leaky ReLU": nn.LeakyReLU, "softplus": nn.Softplus, "softsign": nn.Softsign,
}  # fmt: skip
LOSSES = {"half_mse": ns.losses.half_mse, "cross_entropy": nn.CrossEntropyLoss()}


def drawn(draw: int, index: int) -> dict[str, Any]:
    """One network's settings."""
    rng = random.Random(f"{draw}/{index}")
    family = rng.choice(("mlp", "mlp", "mlp", "cnn"))
    small = family == "cnn"
    width = rng.choice((30, 40, 60) if small else (30, 50, 80, 150, 200, 300, 600))
    return {
        "family": family,
        "norm": rng.choice(("none", "batch", "batch", "layer", "rms", "group")),
        "activation": rng.choice(("ReLU", "ReLU", "tanh", "tanh", *ACTIVATIONS)),
        "width": width,
        "depth": rng.randint(1, 3) if small else rng.randint(1, 3 if width > 300 else 8),
        "inputs": rng.choice((1, 3)) if small else rng.choice((4, 8, 12, 20, 30, 60, 200, 784)),
        "side": rng.choice((6, 8, 12)) if small else 1,
        "padding": rng.choice((0, 1)),
        "batch": rng.choice((16, 32, 64, 128)),
        "outputs": rng.choice((1, 2, 5, 10, 10, 30)),
        "sigma_w2": rng.choice((None, 1.0, 1.5, 2.0)),
        "gamma": rng.choice((0.3, 1.0, 1.0, 1.0, 2.0)),
        "loss": rng.choice(("half_mse", "half_mse", "half_mse", "cross_entropy")),
        "stats": rng.choice(("batch", "batch", "batch", "frozen")),
    }


def built(case: dict[str, Any], seed: int) -> nn.Sequential:
    """The network; sigma_w2 of None is torch's own initialization."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    images, width, fed, side = case["family"] == "cnn", case["width"], case["inputs"], case["side"]
    for _ in range(case["depth"]):
        if images:
            side = side + 2 * case["padding"] - 2
            layers.append(nn.Conv2d(fed, width, 3, padding=case["padding"]))
        else:
            layers.append(nn.Linear(fed, width))
        layers += [_norm(case["norm"], width, images, case["gamma"]), ACTIVATIONS[case["activation"]]()]
        fed = width
    if images:
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers.append(nn.Linear(fed, case["outputs"]))
    if case["sigma_w2"] is not None:
        for layer in layers:
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                nn.init.normal_(layer.weight, std=(case["sigma_w2"] / layer.weight[0].numel()) ** 0.5)
                nn.init.zeros_(layer.bias)
    return nn.Sequential(*[layer for layer in layers if not isinstance(layer, nn.Identity)])


def _norm(kind: str, width: int, images: bool, gamma: float) -> nn.Module:
    layer: nn.Module = {
        "none": nn.Identity,
        "batch": nn.BatchNorm2d if images else nn.BatchNorm1d,
        "layer": (lambda n: nn.GroupNorm(1, n)) if images else nn.LayerNorm,
        "rms": ns.norms.RMSNorm,
        "group": lambda n: nn.GroupNorm(2, n),
    }[kind](width)
    if kind != "none":
        nn.init.constant_(layer.weight, gamma)
    return layer


def shape_of(case: dict[str, Any]) -> tuple[int, ...]:
    return (case["inputs"], case["side"], case["side"]) if case["family"] == "cnn" else (case["inputs"],)


def judged(case: dict[str, Any]) -> dict[str, Any]:
    """One row: the ratio of measured to predicted, the stated range, and the warnings that widened it."""
    shape, m, loss = shape_of(case), case["batch"], case["loss"]
    measured, predicted, found = [], [], None
    for seed in range(SEEDS):
        net = built(case, seed)
        found = ns.predict(net, shape, loss, m, stats=case["stats"])
        generator = torch.Generator().manual_seed(100 + seed)
        x = torch.randn(m, *shape, generator=generator)
        labels = torch.randint(case["outputs"], (m,), generator=generator)
        seen = ns.measure(
            net, LOSSES[loss], (x, labels), stats=case["stats"], hessian=False, solver=ns.curvature.Solver(tol=0.01)
        )
        measured.append(seen.lambda_max)
        predicted.append(found.lambda_max)
    assert found is not None
    low, high = found.calibrated_range
    ratio = statistics.mean(measured) / statistics.mean(predicted)
    return case | {
        "measured": measured,
        "predicted": predicted,
        "ratio": ratio,
        "range": [low, high],
        "mode": found.mode,
        "modes": [found.mean_mode, found.data_mode],
        "growth": _growth(found),
        "raised": found.lambda_max / found.lambda_infinite,
        "warnings": [warning[:60] for warning in found.warnings],
        "refused": bool(getattr(found, "refusal", "")),
        "inside": low <= ratio <= high,
    }


def _growth(found: ns.prediction.Prediction) -> float:
    """Squared gradients at the first hidden layer over those at the last."""
    hidden = [row["qt"] for row in found.layers if "qt" in row][:-1]
    return float(hidden[0]) / float(hidden[-1]) if hidden and float(hidden[-1]) else 1.0


def table(draw: int, count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    index = 0
    while len(rows) < count:
        case = {"index": index} | drawn(draw, index)
        index += 1
        sides = case["side"] - (2 - 2 * case["padding"]) * case["depth"]
        if (case["family"] == "cnn" and sides < 1) or (case["loss"] == "cross_entropy" and case["outputs"] == 1):
            continue
        try:
            rows.append(judged(case))
        except ValueError as refused:
            rows.append(case | {"refused": True, "inside": True, "said": str(refused)[:120]})
        row = rows[-1]
        print(
            f"{index:4d} {'' if row['inside'] else 'OUT':3s} {'refused' if row['refused'] else '':7s} "
            f"{row.get('ratio', float('nan')):7.3g} of {row.get('range')} "
            + " ".join(f"{key}={case[key]}" for key in list(case)[1:]),
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--draw", type=int, default=2)
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began = time.process_time()
    rows = table(options.draw, options.count)
    answered = [row for row in rows if not row["refused"]]
    outside = [row for row in answered if not row["inside"]]
    summary = {
        "draw": options.draw,
        "networks": len(rows),
        "refused": len(rows) - len(answered),
        "answered": len(answered),
        "outside": len(outside),
        "processor_seconds": round(time.process_time() - began),
    }
    print(summary)
    if options.out:
        text = json.dumps({"schema": 1, **summary, "rows": rows, "environment": environment()}, indent=1)
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
