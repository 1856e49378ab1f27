"""Costs of a Monitor's snapshot as ratios to passes of the same network, from one run.

    OMP_NUM_THREADS=2 python benchmarks/observe.py [--device cuda] [--out benchmarks/results/observe-cpu.json]

- landscape: a snapshot of k points over (k + 1) x (forward + backward). The aim is 1.15 for networks of VGG size and
  1.4 for small ones. Beside it a hand-written loop that deep-copies the model for each point.
- shift: all layers over k x (forward + backward), k the number of layers; beside it the deep-copying loop.
- critical: over forward passes.
- budget: the share of the time of 500 steps that snapshots at budget=0.05 took.
- memory: peak of a snapshot over peak of a training step (of the device; on the CPU, resident, in a process of its
  own).
- Cockpit (`pip install cockpit-for-pytorch`), where it is installed and where it can run.

Correctness comes first: the deep-copying loops must give the same numbers. Candidates take turns in rounds.
"""

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import normscope as ns
from normscope.monitor import CriticalProbe, LandscapeProbe, ShiftProbe
from normscope.results.environment import environment

FACTORS = (0.5, 1.0, 2.0, 4.0)


def cases(device: str) -> dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]], Any, float]]:
    """name -> (model, batch, loss, lr)."""
    entropy = ns.losses.cross_entropy

    def images(n: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(n, 3, 32, 32, generator=generator)
        return x.to(device), torch.randint(10, (n,), generator=generator).to(device)

    def digits() -> tuple[Tensor, Tensor]:
        data = ns.data.digits(seed=0)
        return data.x_train[:128].flatten(1).to(device), data.y_train[:128].to(device)

    def linear() -> tuple[Tensor, Tensor]:
        data = ns.data.gaussian(seed=0)
        return data.x_train.to(device), data.y_train.to(device)

    # At 128 images a large GPU waits for the host; at 1024 the host for it.
    n, small = (1024, 128) if device == "cuda" else (64, 32)
    quarter = {"width": 0.25} if device == "cpu" else {}
    return {
        "VGG-16": (lambda: ns.models.VGG(16, norm="batch"), lambda: images(n), entropy, 0.1),
        "PreActResNet-18": (lambda: ns.models.PreActResNet18(norm="batch"), lambda: images(n), entropy, 0.1),
        "VGG-16, small": (lambda: ns.models.VGG(16, norm="batch", **quarter), lambda: images(small), entropy, 0.1),
        "DLN": (lambda: ns.models.DLN(norm="batch"), linear, ns.losses.half_sse, 1e-6),
        "digits MLP": (lambda: ns.models.MLP(64, 10, width=100, norm="batch"), digits, entropy, 0.1),
    }


class Case:
    """One network with its batch and optimizer, and what is timed on it."""

    def __init__(self, name: str, device: str) -> None:
        make, batch, self.loss_fn, lr = cases(device)[name]
        self.device = device
        self.model = make().to(device)
        self.x, self.y = batch()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.lr = lr

    def train_pass(self) -> None:
        self.optimizer.zero_grad()
        self.loss_fn(self.model(self.x), self.y).backward()

    def forward_pass(self) -> None:
        with torch.no_grad():
            self.loss_fn(self.model(self.x), self.y)

    def look(self, measurement: Any) -> Callable[[], Any]:
        monitor = ns.Monitor(self.model, self.loss_fn, every=1, measure=[measurement], budget=None, on_error="raise")

        def run() -> Any:
            record = monitor.step(self.x, self.y, self.optimizer)
            return record.results[measurement.name] if record else None

        return run

    def gradient(self, model: nn.Module) -> tuple[float, list[Tensor]]:
        loss = self.loss_fn(model(self.x), self.y)
        return float(loss.detach()), list(torch.autograd.grad(loss, list(model.parameters())))

    def copied_landscape(self) -> tuple[list[float], list[float]]:
        """The usual hand-written loop: a deep copy for each point."""
        _, g = self.gradient(copy.deepcopy(self.model))
        losses, changes = [], []
        for c in FACTORS:
            twin = copy.deepcopy(self.model)
            with torch.no_grad():
                for p, d in zip(twin.parameters(), g, strict=True):
                    p -= c * self.lr * d
            loss, there = self.gradient(twin)
            losses.append(loss)
            changes.append(float(torch.stack([(a - b).norm() for a, b in zip(there, g, strict=True)]).norm()))
        return losses, changes

    def copied_shift(self) -> list[float]:
        """A full pass on a deep copy for each layer; layers in the order of registration, as these networks run."""
        _, g = self.gradient(copy.deepcopy(self.model))
        shifts = []
        for i, p in enumerate(self.model.parameters()):
            if p.ndim < 2:
                continue
            twin = copy.deepcopy(self.model)
            with torch.no_grad():
                for q, d in zip(list(twin.parameters())[:i], g, strict=False):
                    q -= self.lr * d
            shifts.append(float((self.gradient(twin)[1][i] - g[i]).norm()))
        return shifts


def seconds(run: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def in_turns(runs: dict[str, Callable[[], Any]], device: str, budget: float) -> dict[str, float]:
    """Medians; rounds until `budget` seconds are spent, at least three."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    started = time.perf_counter()
    while len(times[next(iter(runs))]) < 3 or time.perf_counter() - started < budget:
        for name, run in runs.items():
            times[name].append(seconds(run, device))
    return {name: statistics.median(series) for name, series in times.items()}


def check(case: Case, shift: bool) -> None:
    """Numbers first: equal to the deep-copying loops."""
    landscape = case.look(LandscapeProbe(FACTORS))()
    losses, changes = case.copied_landscape()
    torch.testing.assert_close(torch.tensor(landscape.losses), torch.tensor(losses), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(torch.tensor(landscape.changes), torch.tensor(changes), rtol=2e-2, atol=1e-3)
    if shift:
        ours = case.look(ShiftProbe("gradient"))()
        torch.testing.assert_close(torch.tensor(ours.shifts), torch.tensor(case.copied_shift()), rtol=2e-2, atol=1e-3)


def measure(name: str, device: str, budget: float) -> dict[str, float]:
    case = Case(name, device)
    case.train_pass()
    in_order = isinstance(case.model, nn.Sequential)
    check(case, in_order)
    shift = ShiftProbe("gradient")
    layers = len(case.look(shift)().layers)
    runs: dict[str, Callable[[], Any]] = {
        "pass": case.train_pass,
        "forward": case.forward_pass,
        "landscape": case.look(LandscapeProbe(FACTORS)),
        "landscape, copied": case.copied_landscape,
        "shift": case.look(shift),
        "critical": case.look(CriticalProbe()),
    }
    if in_order:
        runs["shift, copied"] = case.copied_shift
    time_of = in_turns(runs, device, budget)
    k = len(FACTORS)
    row = {
        "pass_ms": 1e3 * time_of["pass"],
        "layers": layers,
        "landscape": time_of["landscape"] / ((k + 1) * time_of["pass"]),
        "landscape_copied": time_of["landscape, copied"] / ((k + 1) * time_of["pass"]),
        # With the pass at theta, which gives all layers' gradients before the update, and without it.
        "shift": time_of["shift"] / (layers * time_of["pass"]),
        "shift_alone": (time_of["shift"] - time_of["pass"]) / (layers * time_of["pass"]),
        "critical_forwards": time_of["critical"] / time_of["forward"],
    }
    if in_order:
        row["shift_copied"] = time_of["shift, copied"] / (layers * time_of["pass"])
    return row


def budget_kept(name: str, device: str, steps: int = 500) -> dict[str, float]:
    """The share of the time of `steps` steps that snapshots took: by the monitor's account, and by the clock."""
    case = Case(name, device)
    monitor = ns.Monitor(case.model, case.loss_fn, every=5, measure="standard", budget=0.05, on_error="raise")

    def step() -> None:
        case.train_pass()
        monitor.step(case.x, case.y, case.optimizer)
        case.optimizer.step()

    times = [seconds(step, device) for _ in range(steps)]
    measured = {record.step for record in monitor.records}
    ordinary = statistics.median(t for i, t in enumerate(times) if i not in measured)
    return {
        "looks": len(measured),
        "share": float(monitor.frame().seconds.sum()) / sum(times),
        "share_by_the_clock": sum(times[i] - ordinary for i in measured) / sum(times),
    }


def peak(name: str, device: str, what: str) -> float:
    """MiB; of device memory, or resident in this process."""
    case = Case(name, device)
    run = {
        "pass": case.train_pass,
        "landscape": case.look(LandscapeProbe(FACTORS)),
        "shift": case.look(ShiftProbe("gradient")),
    }[what]
    case.train_pass()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() / 2**20
    run()
    # Not ru_maxrss: a child starts with its parent's peak there.
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return float(line.split()[1]) / 2**10


def peaks(name: str, device: str) -> dict[str, float]:
    """Peak of each kind over the peak of a training pass, each in a process of its own."""
    mib = {}
    for what in ("pass", "landscape", "shift"):
        command = [sys.executable, __file__, "--device", device, "--peak", name, what]
        mib[what] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"pass_mib": mib["pass"]} | {k: mib[k] / mib["pass"] for k in ("landscape", "shift")}


def cockpit_on(model: nn.Module, x: Tensor, y: Tensor) -> str:
    """One step of Cockpit's full configuration: how long over a plain pass, or the message with which it fails."""
    try:
        from backpack import extend
        from cockpit import Cockpit
        from cockpit.utils.configuration import configuration
    except ImportError as error:
        return f"not run: {error}"
    try:
        model = extend(model)
        loss_fn, single = extend(nn.CrossEntropyLoss()), extend(nn.CrossEntropyLoss(reduction="none"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        cockpit = Cockpit(model.parameters(), quantities=configuration("economy"))

        def step(step_number: int, tracked: bool) -> None:
            optimizer.zero_grad()
            outputs = model(x)
            loss = loss_fn(outputs, y)
            if not tracked:
                loss.backward()
                return
            losses = single(outputs, y)
            info = {"batch_size": len(x), "individual_losses": losses, "loss": loss, "optimizer": optimizer}
            with cockpit(step_number, info=info):
                loss.backward(create_graph=cockpit.create_graph(step_number))

        step(0, True)
        times = {}
        for tracked in (False, True):
            series = []
            for i in range(10):
                started = time.perf_counter()
                step(i, tracked)
                series.append(time.perf_counter() - started)
            times[tracked] = statistics.median(series)
        return f"{times[True] / times[False]:.2f} times a plain pass ('economy', every step)"
    except Exception as error:
        return f"fails: {type(error).__name__}: {str(error).splitlines()[0][:200]}"


def cockpit() -> dict[str, str]:
    data = ns.data.digits(seed=0)
    x, y = data.x_train[:128].flatten(1), data.y_train[:128]
    plain = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    normed = nn.Sequential(nn.Linear(64, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 10))
    return {"MLP without a normalizer": cockpit_on(plain, x, y), "MLP with nn.BatchNorm1d": cockpit_on(normed, x, y)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each network")
    parser.add_argument("--peak", nargs=2, metavar=("NETWORK", "WHAT"), help="print one peak and end")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.peak:
        print(peak(args.peak[0], args.device, args.peak[1]))
        return
    load = os.getloadavg()[0]
    rows = {name: measure(name, args.device, args.seconds) for name in cases(args.device)}
    small = ("VGG-16, small", "digits MLP")
    result = {
        "schema": 1,
        "environment": environment(args.device),
        "load": load,
        "points": len(FACTORS),
        "cost": rows,
        "budget": {name: budget_kept(name, args.device) for name in small},
        "memory": {name: peaks(name, args.device) for name in ("VGG-16", "PreActResNet-18")},
        "cockpit": cockpit(),
    }
    print(f"{'':>20} pass ms  landscape  (copied)  shift  (copied)  critical/forward")
    for name, row in rows.items():
        print(
            f"{name:>20} {row['pass_ms']:7.1f} {row['landscape']:10.2f} {row['landscape_copied']:9.2f} "
            f"{row['shift']:6.2f} {row.get('shift_copied', float('nan')):9.2f} {row['critical_forwards']:12.1f}"
        )
    for key in ("budget", "memory", "cockpit"):
        print(key, json.dumps(result[key], indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
