"""Loss bands, gradient changes and effective beta over training, with and without BatchNorm.

    python examples/landscape.py dln --seeds 0 1 2 --out results/landscape-dln.json
    python examples/landscape.py vgg --seeds 0 1 --out results/landscape-vgg16-cifar10.json
    python examples/landscape.py table --out results/landscape-dln.json     # what docs/evidence/landscapes.md shows

The settings of "How Does Batch Normalization Help Optimization?": the 25-layer deep linear network, full batch, lr
1e-6, 10,000 steps, a snapshot every 25; VGG-16 on CIFAR-10 (`normscope data fetch cifar10`), lr 0.1, batch 128, 15,000
steps, a snapshot every 100. The first takes some five minutes on one core, the second four minutes a seed on one large
GPU. Beside the landscape, the covariate shift of the layers that the paper shows. All measured numbers are stored.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import normscope as ns
from normscope.monitor import DLN_FACTORS, VGG_FACTORS, LandscapeProbe, ShiftProbe
from normscope.results import plain

WINDOWS = {"dln": [(0, 1_000), (0, 10_000)], "vgg": [(0, 1_500), (1_500, 5_000), (5_000, 15_000), (100, 15_000)]}


def dln(norm: str, seed: int, steps: int, _: Any) -> tuple[ns.Monitor, Any]:
    torch.set_num_threads(1)
    model = ns.models.DLN(norm=norm, seed=seed)
    data = ns.data.gaussian(seed=seed)
    shift = ShiftProbe(update="gradient", layers=["linears.8", "linears.16"])
    monitor = ns.Monitor(model, ns.losses.half_sse, every=25, measure=[LandscapeProbe(DLN_FACTORS), shift], budget=None)
    batches = ((data.x_train, data.y_train) for _ in range(steps))
    sgd = torch.optim.SGD(model.parameters(), lr=1e-6)
    return monitor, ns.train(model, ns.losses.half_sse, batches, sgd, seed=seed, monitor=monitor)


def vgg(norm: str, seed: int, steps: int, data: ns.data.Dataset) -> tuple[ns.Monitor, Any]:
    model = ns.models.VGG(16, norm=norm, seed=seed).to(data.x_train.device)
    convolutions = [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Conv2d)]
    shift = ShiftProbe(update="gradient", layers=[convolutions[4], convolutions[9]])
    loss = ns.losses.cross_entropy
    monitor = ns.Monitor(model, loss, every=100, measure=[LandscapeProbe(VGG_FACTORS), shift], budget=None)
    batches = ns.data.batches(data.x_train, data.y_train, batch_size=128, seed=seed, steps=steps)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return monitor, ns.train(model, loss, batches, sgd, seed=seed, check_every=100, monitor=monitor)


def summary(snapshots: pd.DataFrame, first: int, last: int) -> dict[str, float]:
    """Statistics of the snapshots at steps `first` to `last`."""
    rows = snapshots[(snapshots.step >= first) & (snapshots.step <= last)]
    band = rows.loss_max - rows.loss_min
    return {
        "first": first,
        "last": last,
        "snapshots": len(rows),
        "band_mean": band.mean(),
        "band_p95": band.quantile(0.95),
        "band_ratio_geometric_mean": float(np.exp(np.log(rows.loss_max / rows.loss_min).mean())),
        "loss_max_largest": rows.loss_max.max(),
        "grad_change_mean": rows.grad_change_max.mean(),
        "grad_change_p95": rows.grad_change_max.quantile(0.95),
        "grad_change_largest": rows.grad_change_max.max(),
        "beta_mean": rows.beta.mean(),
        "beta_median": rows.beta.median(),
        "beta_largest": rows.beta.max(),
        "beta_limit": rows.beta_limit.iloc[0] if len(rows) else float("nan"),
        "spikes": float((rows.beta > rows.beta_limit).mean()),
    }


def table(path: Path) -> str:
    """The windows of a stored result as Markdown, a row a seed and normalizer."""
    columns = ("band_mean", "band_ratio_geometric_mean", "loss_max_largest", "grad_change_p95", "beta_median")
    head = "| steps | seed | norm | mean band | geom. mean max/min | largest loss | p95 gradient change | median beta "
    lines = [head + "| largest beta | above 2/lr |", "|---|---|---|---|---|---|---|---|---|---|"]
    runs = json.loads(path.read_text())["runs"]
    for number in range(len(runs[0]["windows"])):
        for run in runs:
            window = run["windows"][number]
            cells = [f"{window['first']} to {window['last']}", str(run["seed"]), run["norm"]]
            cells += [f"{window[name]:.3g}" for name in (*columns, "beta_largest")]
            lines.append("| " + " | ".join([*cells, f"{window['spikes']:.0%}"]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=(*WINDOWS, "table"))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.network == "table":
        print(table(args.out))
        return
    torch.set_float32_matmul_precision("high")
    run: Callable[..., tuple[ns.Monitor, Any]] = {"dln": dln, "vgg": vgg}[args.network]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = ns.data.cifar10(args.data_root).to(device) if args.network == "vgg" else None
    steps = args.steps or WINDOWS[args.network][-1][1]
    kept = []
    for seed in args.seeds:
        for norm in ("batch", "none"):
            monitor, training = run(norm, seed, steps, data)
            snapshots = monitor.frame().drop(columns=["seconds"])
            windows = [summary(snapshots, first, min(last, steps)) for first, last in WINDOWS[args.network]]
            print(f"seed {seed}  {norm:>5}  final loss {training.final_loss:.4g}  {training.seconds:.0f} s", flush=True)
            print(pd.DataFrame(windows).round(4).to_string(index=False), flush=True)
            kept.append(
                {
                    "network": args.network,
                    "norm": norm,
                    "seed": seed,
                    "final_loss": training.final_loss,
                    "diverged_at": training.diverged_at,
                    "seconds": training.seconds,
                    "seconds_measuring": float(monitor.frame().seconds.sum()),
                    "windows": windows,
                    "snapshots": {name: [float(f"{x:.6g}") for x in snapshots[name]] for name in snapshots},
                    "layers": [
                        {"layer": layer}
                        | {name: [float(f"{x:.6g}") for x in rows[name]] for name in ("shift", "shift_cosine")}
                        for layer, rows in monitor.layers().groupby("layer")
                    ],
                    "settings": training.settings,
                    "environment": training.environment,
                }
            )
            args.out.write_text(json.dumps(plain({"kind": "landscapes", "schema": 2, "runs": kept})) + "\n")


if __name__ == "__main__":
    main()
