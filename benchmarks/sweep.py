"""Trained model-steps per second: a stack of networks against one at a time with ordinary eager PyTorch.

    python benchmarks/sweep.py                       # CPU: the digits MLP, and a CNN that is faster alone
    python benchmarks/sweep.py --device cuda         # the paper's MLP and CNN
    python benchmarks/sweep.py --out result.json

Numbers first: a stack's members equal networks trained alone in float64. Then rates, all in one run, medians of
repeats; on a GPU with TensorFloat-32 products on both sides.

The floor of the MLP is memory traffic at the copy bandwidth measured in the same run. A weight is read in the forward
pass and in the backward pass (not the first layer's), its gradient is written, and the update reads gradient, velocity
and weight and writes velocity and weight: 32 bytes a step, 28 in the first layer. Of a hidden layer's activations of
batch x width floats, 11 passes: z written and read, h written and read twice, dh written and read, z read again, dz
written and read twice. Nothing else is counted, and no cache.
"""

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import normscope as ns
from normscope.losses import half_mse
from normscope.results.environment import environment
from normscope.sweeping.stacked_step import Members, Program, stack

BATCH, RATE, MOMENTUM = 128, 1e-3, 0.9
WIDE = {"width": 1000, "depth": 4}


def network(name: str, seed: int) -> nn.Module:
    if name == "digits MLP":
        return ns.models.MLP(64, 10, width=32, depth=3, norm="batch", seed=seed)
    if name == "MLP":
        return ns.models.MLP(784, 10, **WIDE, norm="batch", seed=seed)
    return ns.models.CNN(norm="batch", seed=seed)


def batch(name: str, device: str) -> tuple[Tensor, Tensor]:
    shape = {"digits MLP": (1, 8, 8), "MLP": (1, 28, 28), "CNN": (3, 32, 32)}[name]
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(BATCH, *shape, generator=generator), torch.randint(10, (BATCH,), generator=generator)
    return x.to(device), y.to(device)


def with_torchs_norms(model: nn.Module) -> nn.Module:
    """The network as one would write it with torch.nn alone."""
    for parent in list(model.modules()):
        for key, layer in list(parent.named_children()):
            for ours, theirs in ((ns.norms.BatchNorm1d, nn.BatchNorm1d), (ns.norms.BatchNorm2d, nn.BatchNorm2d)):
                if type(layer) is ours:
                    setattr(parent, key, theirs(layer.num_features))
    return model


def synchronized(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def rate(step: Callable[[], Any], device: str, models: int, seconds: float) -> float:
    """Model-steps per second: median over at least five repeats of as many steps as take a fifth of `seconds`."""
    for _ in range(3):
        step()
    synchronized(device)
    started = time.perf_counter()
    step()
    synchronized(device)
    steps = max(1, int(seconds / 5 / max(time.perf_counter() - started, 1e-6)))
    rates = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(steps):
            step()
        synchronized(device)
        rates.append(models * steps / (time.perf_counter() - started))
    return statistics.median(rates)


def alone(name: str, device: str, seconds: float) -> float:
    model = with_torchs_norms(network(name, 0)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    x, y = batch(name, device)

    def step() -> None:
        optimizer.zero_grad()
        half_mse(model(x), y).backward()
        optimizer.step()

    return rate(step, device, 1, seconds)


def members_of(name: str, count: int, device: str, dtype: torch.dtype = torch.float32) -> Members:
    models = [network(name, seed).to(dtype) for seed in range(4)]
    rows = list(itertools.islice(itertools.cycle(models), count))
    return stack(rows, [(RATE, MOMENTUM, 0.0)] * count, torch.device(device))


def program_of(name: str, device: str, *, lowered: bool, compiled: bool, dtype: torch.dtype = torch.float32) -> Program:
    return Program(network(name, 0).to(device, dtype), half_mse, lowered=lowered, compiled=compiled)


def stacked(name: str, device: str, count: int, seconds: float, *, lowered: bool, compiled: bool) -> dict[str, Any]:
    program = program_of(name, device, lowered=lowered, compiled=compiled)
    members = members_of(name, count, device)
    x, y = batch(name, device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    losses, _ = program.step(members, x, y, 0)
    synchronized(device)
    first = time.perf_counter() - started
    numbers = {"members": count, "lowered": lowered, "compiled": program.compiled, "first_step_s": first}
    numbers["rate"] = rate(lambda: program.step(members, x, y, 1), device, count, seconds)
    if device == "cuda":
        numbers["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    assert losses.isfinite().all()
    return numbers


def check(name: str, device: str, *, compiled: bool) -> float:
    """Largest difference of parameters, relative to their size, after 5 steps in float64; refuses beyond 1e-10."""
    x, y = batch(name, device)
    x = x.double()
    members = members_of(name, 3, device, torch.float64)
    program = program_of(name, device, lowered=True, compiled=compiled, dtype=torch.float64)
    for step in range(5):
        program.step(members, x, y, step)
    apart = 0.0
    for seed in range(3):
        model = network(name, seed).to(device, torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        for _ in range(5):
            optimizer.zero_grad()
            half_mse(model(x), y).backward()
            optimizer.step()
        for key, parameter in model.named_parameters():
            parameter = parameter.detach()
            difference = (members.parameters[key][seed] - parameter).abs().max() / parameter.abs().max()
            apart = max(apart, float(difference))
    assert apart < 1e-10, f"{name}: members differ from networks trained alone by {apart:g}"
    return apart


def bandwidth() -> float:
    """Bytes per second of a copy on the GPU, read and written counted."""
    source = torch.empty(2**29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 * rate(lambda: target.copy_(source), "cuda", 1, 1.0)


def floor_bytes(d_in: int = 784, d_out: int = 10, width: int = 1000, depth: int = 4) -> int:
    """Bytes that one model-step of the MLP moves at least; see above."""
    first, rest = d_in * width, (depth - 2) * width * width + width * d_out
    return 28 * first + 32 * rest + (depth - 1) * 11 * 4 * BATCH * width


def on_gpu(result: dict[str, Any], args: argparse.Namespace, say: Callable[[str, Any], None]) -> None:
    torch.set_float32_matmul_precision("high")
    speed = bandwidth()
    floor = result["floor"] = {"bytes": floor_bytes(), "bytes_per_s": speed, "rate": speed / floor_bytes()}
    say("floor", floor)
    for name in ("MLP", "CNN"):
        result[name] = {"difference": check(name, "cuda", compiled=False), "alone": alone(name, "cuda", args.seconds)}
        result[name]["stacked"] = []
        say(name, result[name])
        # The chosen way first, then another size, and convolutions as they are.
        ways = [(False, 256), (False, 512)] if name == "MLP" else [(True, 256), (False, 256)]
        for lowered, count in ways:
            row = stacked(name, "cuda", count, args.seconds, lowered=lowered, compiled=True)
            row["ratio"] = row["rate"] / result[name]["alone"]
            if name == "MLP":
                row["of_floor"] = row["rate"] / floor["rate"]
            result[name]["stacked"].append(row)
            say(name, row)
            torch.cuda.empty_cache()


def on_cpu(result: dict[str, Any], args: argparse.Namespace, say: Callable[[str, Any], None]) -> None:
    digits = [(False, count, compiled) for compiled in (False, True) for count in (64, 128)]
    for name, ways in (("digits MLP", digits), ("CNN", [(False, 16, False), (True, 16, False)])):
        result[name] = {"difference": check(name, "cpu", compiled=False)}
        # Small networks alone may be faster on one thread: the faster counts.
        for threads in (1, args.threads):
            torch.set_num_threads(threads)
            result[name][f"alone_on_{threads}"] = alone(name, "cpu", args.seconds)
        result[name]["alone"] = max(result[name]["alone_on_1"], result[name][f"alone_on_{args.threads}"])
        result[name]["stacked"] = []
        say(name, result[name])
        for lowered, count, compiled in ways:
            row = stacked(name, "cpu", count, args.seconds, lowered=lowered, compiled=compiled)
            row["ratio"] = row["rate"] / result[name]["alone"]
            result[name]["stacked"].append(row)
            say(name, row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each rate")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    load = os.getloadavg()[0]
    real_time = os.sched_getscheduler(0) != os.SCHED_OTHER
    result: dict[str, Any] = {"schema": 1, "environment": environment(args.device), "load": load}
    result |= {"real_time_priority": real_time, "batch": BATCH}

    def say(name: str, row: Any) -> None:
        """Print and store each measurement at once, so that an interrupted run keeps its numbers."""
        print(name, json.dumps(row), flush=True)
        if args.out:
            args.out.write_text(json.dumps(result, indent=1) + "\n")

    if args.device == "cuda":
        on_gpu(result, args, say)
    else:
        on_cpu(result, args, say)
    print(f"\n{'':>12} {'members':>7} {'lowered':>8} {'compiled':>9} model-steps/s  against one at a time")
    for name in (name for name in ("MLP", "CNN", "digits MLP") if name in result):
        print(f"{name:>12} {'alone':>7} {'':>18} {result[name]['alone']:13.0f}")
        for row in result[name]["stacked"]:
            print(
                f"{name:>12} {row['members']:7} {row['lowered']!s:>8} {row['compiled']!s:>9} "
                f"{row['rate']:13.0f} {row['ratio']:8.1f}x"
            )
    if "MLP" in result:
        floor, reached = result["floor"], max(row["of_floor"] for row in result["MLP"]["stacked"])
        print(f"MLP floor {floor['rate']:.0f} at {floor['bytes_per_s'] / 1e12:.2f} TB/s; reached {reached:.2f}")


if __name__ == "__main__":
    main()
