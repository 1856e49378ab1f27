"""Forward + backward of every normalizer against torch.nn.BatchNorm2d, as ratios from one run.

    python benchmarks/norms.py [--device cuda] [--out benchmarks/results/norms-cpu.json]

Correctness comes first: every BatchNorm is compared with torch's before it is timed. Candidates take turns in rounds,
so that a neighbour's load falls on all of them. A ratio is the median over rounds of time / time of nn.BatchNorm2d in
the same round and mode (eager against eager, compiled against compiled); `ratio_to_eager` divides by the eager
nn.BatchNorm2d in both modes. On a GPU the device's work is timed by replaying it as a CUDA graph, and the time with the
host's launches is given beside it.
"""

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from normscope.compiling import compile_or_eager, why_not_compiled
from normscope.norms import NORM_NAMES, make_norm
from normscope.results.environment import environment

SHAPES = {"cpu": (64, 64, 16, 16), "cuda": (256, 128, 32, 32)}


def candidates(channels: int, device: str) -> dict[str, nn.Module]:
    ours = {name: make_norm(name, channels, dim=2) for name in NORM_NAMES if name != "none"}
    return {name: layer.to(device) for name, layer in {"torch.nn": nn.BatchNorm2d(channels), **ours}.items()}


def check(layers: dict[str, nn.Module], x: Tensor) -> None:
    """Outputs and input gradients of our BatchNorm equal torch's, so that the times compare like with like."""
    outputs = {}
    for name in ("torch.nn", "batch"):
        a = x.detach().clone().requires_grad_()
        y = layers[name](a)
        y.backward(torch.cos(torch.arange(y.numel(), device=y.device, dtype=y.dtype)).view_as(y))
        outputs[name] = (y.detach(), a.grad)
    for ours, theirs in zip(outputs["batch"], outputs["torch.nn"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def step(function: Callable[[Tensor], Tensor], layer: nn.Module, x: Tensor, g: Tensor) -> Callable[[], None]:
    inputs = (x, *layer.parameters())
    return lambda: torch.autograd.grad(function(x), inputs, g) and None


def replayable(run: Callable[[], None]) -> Callable[[], None]:
    """The device's work of `run` as a CUDA graph: one layer alone is too short to hide the host's launches."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def seconds(run: Callable[[], None], repeats: int, device: str) -> float:
    """Seconds of one call, after an untimed one that clears the caches of the run before."""
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / repeats


def measure(device: str, mode: str, rounds: int) -> dict[str, dict[str, float]]:
    """ms and ratio; on a GPU of the device's work alone (`ms`, graph replay) and with the host's share (`host_ms`)."""
    shape = SHAPES[device]
    x = torch.randn(shape, device=device, requires_grad=True)
    g = torch.randn(shape, device=device)
    layers = candidates(shape[1], device)
    check(layers, x)
    runs = {}
    for name, layer in layers.items():
        function = compile_or_eager(layer, device=device) if mode == "compiled" else layer
        runs[name] = step(function, layer, x, g)
        for _ in range(5):
            runs[name]()
    if device == "cpu":
        return summary(in_turns(runs, rounds, 3, device))
    with_host = in_turns(runs, 3, 30, device)
    rows = summary(in_turns({name: replayable(run) for name, run in runs.items()}, rounds, 30, device))
    for name in rows:
        rows[name]["host_ms"] = 1e3 * statistics.median(with_host[name])
    return rows


def in_turns(runs: dict[str, Callable[[], None]], rounds: int, repeats: int, device: str) -> dict[str, list[float]]:
    """Seconds by candidate and round; each round in another order, so that nobody always follows the same neighbour."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(runs), len(runs)):
            times[name].append(seconds(runs[name], repeats, device))
    return times


def summary(times: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "ms": 1e3 * statistics.median(series),
            "ratio": statistics.median(a / b for a, b in zip(series, times["torch.nn"], strict=True)),
        }
        for name, series in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=SHAPES, default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    times = {}
    for mode in ("eager", "compiled"):
        if mode == "compiled" and why_not_compiled(args.device):
            print(f"compiled: skipped, {why_not_compiled(args.device)}")
            continue
        times[mode] = measure(args.device, mode, args.rounds)
    for mode in times.values():
        for row in mode.values():
            row["ratio_to_eager"] = row["ms"] / times["eager"]["torch.nn"]["ms"]
    load = os.getloadavg()[0]
    made = {"schema": 1, "shape": SHAPES[args.device], "load": load, "environment": environment(args.device)}
    result = made | {"fwd_bwd": times}
    print(f"{'':>10}" + "".join(f"{mode:>10} ms  ratio  to eager" for mode in times))
    for name in times["eager"]:
        rows = (times[mode][name] for mode in times)
        print(f"{name:>10}" + "".join(f"{r['ms']:13.3f}{r['ratio']:7.2f}{r['ratio_to_eager']:10.2f}" for r in rows))
    print(f"shape {SHAPES[args.device]}, float32, load {load:.1f}, {result['environment']}")
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
