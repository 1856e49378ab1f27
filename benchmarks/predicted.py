"""Predicted against measured lambda_max, over networks, widths, gammas and statistics: how accurate the theory is.

    OMP_NUM_THREADS=1 PYTHONPATH=tests/prediction python benchmarks/predicted.py [--out results/theory-lambda.json]
        [--known FILE ...] keeps the measurements of other results and repeats the predictions
        [--only PreAct --device cuda] for some networks, on a device

White inputs, 10 outputs, 1/2 squared error; five seeds of weights and inputs each, more where five are too few (`n` of
a row). Measured: the Gauss-Newton matrix by Lanczos to a relative residual of 1e-3. Errors are those of the mean over
seeds. `slope` is the slope of log error against log width, for the infinite-width value, where a network was measured
at several widths.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from networks import PostResNet, vgg_like, with_activation
from torch import nn

import normscope as ns
from normscope.results.environment import environment

Make = Callable[[int], nn.Module]


def cases() -> list[dict[str, Any]]:
    """name, width, gamma, stats, m, shape and the network of each."""
    settings: list[dict[str, Any]] = []

    def add(
        name: str,
        make: Callable[..., Make],
        shape: tuple[int, ...],
        m: int,
        widths: Any,
        gammas: Any,
        norm: str,
        seeds: int = 5,
    ) -> None:
        for width in widths:
            for gamma in gammas:
                for stats in ("batch", "frozen") if norm == "batch" else ("batch",):
                    setting = {"network": name, "width": width, "gamma": gamma, "norm": norm, "stats": stats, "m": m}
                    settings.append(setting | {"shape": shape, "make": make(width, gamma, norm), "n": seeds})

    def mlp(width: int, gamma: float, norm: str) -> Make:
        return lambda seed: ns.models.MLP(200, 10, width=width, norm=norm, gamma=gamma, seed=seed)

    def tanh(width: int, gamma: float, norm: str) -> Make:
        return lambda seed: with_activation(
            ns.models.MLP(784, 10, width=width, norm=norm, gamma=gamma, seed=seed), nn.Tanh
        )

    def cnn(width: int, gamma: float, norm: str) -> Make:
        channels = (width, 2 * width, 3 * width)
        return lambda seed: ns.models.CNN(3, 32, 10, channels=channels, norm=norm, gamma=gamma, seed=seed)

    def padded(width: int, gamma: float, norm: str) -> Make:
        channels = (width, 2 * width, 3 * width)
        return lambda seed: ns.models.CNN(3, 32, 10, channels=channels, padding=1, norm=norm, gamma=gamma, seed=seed)

    def vgg(width: int, gamma: float, norm: str) -> Make:
        return lambda seed: vgg_like(seed, width=width, norm=norm, gamma=gamma)

    def resnet(width: int, gamma: float, norm: str) -> Make:
        return lambda seed: ns.models.PreActResNet18(3, 10, width=width, norm=norm, gamma=gamma, seed=seed)

    def post(width: int, gamma: float, norm: str) -> Make:
        return lambda seed: PostResNet(seed, width=width, gamma=gamma)

    add("MLP, ReLU", mlp, (200,), 128, (500,), (0.1, 0.5, 1.0, 2.0, 5.0), "batch")
    add("MLP, ReLU", mlp, (200,), 128, (125, 250, 1000), (1.0,), "batch")
    add("MLP, ReLU", mlp, (200,), 128, (500, 1000), (1.0,), "none")
    add("MLP, tanh", tanh, (784,), 64, (250,), (1.0,), "batch", 20)
    add("MLP, tanh", tanh, (784,), 64, (500, 1000), (1.0,), "batch")
    add("CNN, pad 0", cnn, (3, 32, 32), 64, (30,), (0.1, 1.0, 5.0), "batch")
    add("CNN, pad 0", cnn, (3, 32, 32), 64, (15, 60), (1.0,), "batch")
    add("CNN, pad 1", padded, (3, 32, 32), 64, (30,), (0.1, 1.0, 5.0), "batch")
    add("VGG-like, average pooling", vgg, (3, 8, 8), 64, (48,), (0.1, 1.0, 5.0), "batch")
    add("VGG-like, average pooling", vgg, (3, 8, 8), 64, (24, 96), (1.0,), "batch")
    add("PreActResNet18, 16x16", resnet, (3, 16, 16), 64, (64, 32, 16), (1.0, 5.0, 0.1), "batch")
    add("PreActResNet18, 8x8", resnet, (3, 8, 8), 64, (32, 64, 128), (1.0,), "batch", 12)
    add("PreActResNet18, 8x8", resnet, (3, 8, 8), 64, (16,), (1.0,), "batch")
    add("Post-activation ResNet18, 16x16", post, (3, 16, 16), 64, (32,), (1.0, 5.0), "batch")
    add("Post-activation ResNet18, 16x16", post, (3, 16, 16), 64, (32,), (0.1,), "batch", 24)
    add("Post-activation ResNet18, 16x16", post, (3, 16, 16), 64, (48,), (1.0,), "batch")
    add("Post-activation ResNet18, 16x16", post, (3, 16, 16), 64, (64, 96), (1.0, 0.1), "batch")
    return settings


def compare(case: dict[str, Any], device: str, known: dict[str, Any] | None) -> dict[str, Any]:
    """One row; known: an earlier one, whose measurements are kept."""
    measured, predicted, infinite, modes = [], [], [], set()
    seeds = case["n"] if known is None else known["n"]
    for seed in range(seeds):
        net, m, shape = case["make"](seed), case["m"], case["shape"]
        theory = ns.predict(net, shape, "half_mse", batch_size=m, stats=case["stats"])
        if known is None:
            generator = torch.Generator().manual_seed(100 + seed)
            x, y = torch.randn(m, *shape, generator=generator), torch.randint(10, (m,), generator=generator)
            batch = (x.to(device), y.to(device))
            measurement = ns.measure(
                net.to(device),
                ns.losses.half_mse,
                batch,
                stats=case["stats"],
                hessian=False,
                solver=ns.curvature.Solver(max_products=200),
            )
            measured.append(measurement.lambda_max)
        predicted.append(theory.lambda_max)
        infinite.append(theory.lambda_infinite)
        modes.add(theory.mode)
    mean = statistics.mean(measured) if known is None else known["measured"]
    error = statistics.stdev(measured) / math.sqrt(seeds) if known is None else known["stderr"]
    return setting(case) | {
        "n": seeds,
        "measured": mean,
        "stderr": error,
        "predicted": statistics.mean(predicted),
        "infinite_width": statistics.mean(infinite),
        "error": statistics.mean(predicted) / mean - 1,
        "error_infinite_width": statistics.mean(infinite) / mean - 1,
        "modes": sorted(modes),
        "device": environment(device)["device"] if known is None else known["device"],
    }


def setting(case: dict[str, Any]) -> dict[str, Any]:
    keys = ("network", "width", "gamma", "norm", "stats", "m")
    return {key: case[key] for key in keys} | {"shape": list(case["shape"])}


def slopes(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Least-squares slope of log |error| against log width, for gamma = 1 at three widths or more."""
    by_name = {}
    for name, stats in sorted({(row["network"], row["stats"]) for row in rows}):
        chosen = [r for r in rows if (r["network"], r["stats"], r["gamma"], r["norm"]) == (name, stats, 1.0, "batch")]
        if len(chosen) > 2:
            x = [math.log(r["width"]) for r in chosen]
            y = [math.log(max(abs(r["error_infinite_width"]), 1e-4)) for r in chosen]
            by_name[f"{name}, {stats}"] = statistics.linear_regression(x, y).slope
    return by_name


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="results whose measurements are kept")
    parser.add_argument("--only", default="", help="networks whose name holds this")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    start, rows = time.perf_counter(), []
    results = [json.loads(file.read_text()) for file in options.known]
    old = [{"device": result["environment"]["device"], "n": 5} | row for result in results for row in result["rows"]]
    for case in [case for case in cases() if options.only in case["network"]]:
        known = next((row for row in old if row.items() >= setting(case).items()), None)
        rows.append(compare(case, options.device, known))
        row = rows[-1]
        print(
            f"{row['network']:31s} width {row['width']:5d} gamma {row['gamma']:4g} {row['norm']:5s} {row['stats']:6s} "
            f"measured {row['measured']:9.4g} (n = {row['n']}) predicted {row['predicted']:9.4g} "
            f"{100 * row['error']:+6.1f} % "
            f"(infinite width {100 * row['error_infinite_width']:+6.1f} %) {'/'.join(row['modes'])}",
            flush=True,
        )
        if options.out:
            result: dict[str, Any] = {
                "schema": 1,
                "rows": rows,
                "slopes": slopes(rows),
                "environment": environment(),
            }
            result["seconds"] = round(time.perf_counter() - start)
            options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(slopes(rows))


if __name__ == "__main__":
    main()
