"""Time to lambda_max at a certified relative residual of 1e-3, against other tools, from one run.

    OMP_NUM_THREADS=2 python benchmarks/curvature.py --out benchmarks/results/curvature-cpu.json
    python benchmarks/curvature.py --device cuda --network VGG-16 --out benchmarks/results/curvature-h200-vgg16.json

Batch 256, BatchNorm, cross-entropy, 32x32x3: the CNN of `normscope.models` at initialization and after training steps,
or on a GPU VGG-16 or PreActResNet-18 after training steps. Modes: "eval" (running statistics), where all tools can be
compared, and "train" (as trained), where they raise, change the mode or move the buffers, which is recorded for each.

- product: a GGN and a Hessian product over a gradient (forward and backward).
- race: seconds of each tool to the top eigenvalue, median over rounds in which all take turns; its residual is
  recomputed with normscope's operator. The other tools are optional, and a missing one is reported:
  hessian-eigenthings (its iteration limit raised until its own residual passes), PyHessian (as it stops, and with its
  tolerance lowered until the residual passes) and curvlinops (with scipy's eigsh, last and once, since it is slow;
  over ours just before and after).
- warm: seconds and products after one and ten more training steps, starting from the memory of the last search and
  fresh, on the same batch and on another. moved: the relative residual of the last vector there, which a warm start
  has to reduce. products_from_all: with 60 products' worth of the last operator remembered. products_from_best: by
  Lanczos from the answer's own projection onto those 60 vectors, the nearest start in them. In a row: a search after
  each of five more steps, each from the memory of the one before.
- cost: gradient passes of the default call, and with the Hessian's ends, the default before (`cost.py`); requested by
  --only cost, with a batch of --batch, in --jobs processes at a time.
- memory: peak of a measurement over the peak of a training step, each in a process of its own.

TF32 is off. On a GPU each other tool runs once more with TF32, since normscope searches with such products and ends
with exact ones. A run counts if its residual, by exact products, is at most 1e-3; where the tool's products and ours
differ by more (VGG-16 in eval mode), at most the least that the tool reaches in full precision, up to twice 1e-3. A
tool that takes longer than three seconds, or answers another question, runs once. The file is written after every row.
"""

import argparse
import copy
import itertools
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
from cost import costs
from torch import Tensor, nn

import normscope as ns
from normscope.curvature import Network, lanczos
from normscope.curvature.eigensolvers.davidson import davidson
from normscope.curvature.eigensolvers.lanczos import KEPT_PAIRS, Memory
from normscope.curvature.eigensolvers.solver import fresh_start, warm_start
from normscope.isolation.lending import untouched
from normscope.results.environment import environment

TOL = 1e-3
ALL = 60
SEARCHES = 5
PARTS = ("product", "race", "warm", "memory")
COST = "cost"
SLOW = 3.0
SIDE = 32
LOSS = nn.CrossEntropyLoss()
Found = tuple[float, Tensor]


def networks(device: str) -> dict[str, Callable[[], nn.Module]]:
    if device == "cpu":
        return {"CNN": lambda: ns.models.CNN(norm="batch")}
    return {
        "VGG-16": lambda: ns.models.VGG(16, norm="batch"),
        "PreActResNet-18": lambda: ns.models.PreActResNet18(norm="batch"),
    }


class Case:
    """One network at one point of its training, and a batch."""

    def __init__(self, name: str, device: str, batch: int, steps: int) -> None:
        self.device = device
        self.iterations: dict[tuple[str, str, bool], int] = {}
        self.rounds = False
        self.model = networks(device)[name]().to(device)
        generator = torch.Generator().manual_seed(0)
        self.batches = [
            (torch.randn(batch, 3, SIDE, SIDE, generator=generator), torch.randint(10, (batch,), generator=generator))
            for _ in range(4)
        ]
        self.batches = [(x.to(device), y.to(device)) for x, y in self.batches]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        for i in range(max(steps, 1)):
            # The first pass without a step gives the running statistics a value.
            self.train_pass(i)
            if steps:
                self.optimizer.step()

    @property
    def batch(self) -> tuple[Tensor, Tensor]:
        return self.batches[0]

    def train_pass(self, i: int = 0) -> None:
        self.optimizer.zero_grad()
        x, y = self.batches[i % len(self.batches)]
        LOSS(self.model(x), y).backward()

    def residual(self, matrix: str, mode: str, v: Tensor, value: float | None = None) -> float:
        """||A v - value v|| / |value| with normscope's products; without a value that of v's own quotient."""
        v = v.detach().to(self.device, torch.float32)
        v = v / v.norm()
        with untouched(self.model) as lent:
            network = Network(lent, self.model, LOSS, self.batch, stats=STATS[mode])
            image = network.product(matrix)(v)
        value = float(v @ image) if value is None else value
        return float((image - value * v).norm()) / abs(value)


STATS = {"eval": "running", "train": "batch"}


def normscope(case: Case, model: nn.Module, matrix: str, mode: str) -> Found:
    measurement = ns.measure(
        model, LOSS, case.batch, matrix=matrix, stats=STATS[mode], hessian=False, solver=ns.curvature.Solver(tol=TOL)
    )
    assert measurement.converged, measurement
    return measurement.lambda_max, measurement.vector


def curvlinops(case: Case, model: nn.Module, matrix: str, mode: str) -> Found:
    from curvlinops import GGNLinearOperator, HessianLinearOperator
    from scipy.sparse.linalg import eigsh

    kind = {"ggn": GGNLinearOperator, "hessian": HessianLinearOperator}[matrix]
    operator = kind(model, LOSS, list(model.parameters()), [case.batch], check_deterministic=False)
    values, vectors = eigsh(operator.to_scipy(), k=1, which="LA", tol=TOL)
    return float(values[0]), torch.from_numpy(vectors[:, 0])


def hessian_eigenthings(case: Case, model: nn.Module, matrix: str, mode: str) -> Found:
    import hessian_eigenthings as he

    if matrix == "ggn":
        operator = he.GGNOperator(model, [case.batch], he.supervised_forward, he.supervised_loss_of_output(LOSS))
    else:
        operator = he.HessianOperator(model, [case.batch], he.supervised_loss(LOSS))
    eigenpairs = he.lanczos(
        operator, k=1, max_iter=case.iterations[matrix, mode, case.rounds], tol=TOL, which="LA", seed=0
    )
    if not bool(eigenpairs.converged[0]):
        raise NotEnough
    return float(eigenpairs.eigenvalues[0]), eigenpairs.eigenvectors[0]


class NotEnough(Exception):
    """More iterations, or a smaller tolerance, are needed."""


def pyhessian(tol: float) -> Callable[[Case, nn.Module, str, str], Found]:
    def run(case: Case, model: nn.Module, matrix: str, mode: str) -> Found:
        from pyhessian import hessian

        if matrix == "ggn":
            raise NotImplementedError("PyHessian has no Gauss-Newton products")
        x, y = case.batch
        values, vectors = hessian(model, LOSS, data=(x, y), cuda=case.device == "cuda").eigenvalues(1000, tol)
        return float(values[0]), torch.cat([part.reshape(-1) for part in vectors[0]]).detach()

    return run


LAST = "curvlinops + eigsh"
ROUNDED = ", TF32"
TOOLS: dict[str, Callable[[Case, nn.Module, str, str], Found]] = {
    "normscope": normscope,
    "hessian-eigenthings": hessian_eigenthings,
    "PyHessian": pyhessian(1e-3),
    **{f"PyHessian, tolerance {tol:g}": pyhessian(tol) for tol in (1e-4, 1e-5, 1e-6)},
    LAST: curvlinops,
}


def called(tool: str, case: Case, model: nn.Module, matrix: str, mode: str) -> Found:
    case.rounds = tool.endswith(ROUNDED)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = case.rounds
    try:
        return TOOLS[tool.removesuffix(ROUNDED)](case, model, matrix, mode)
    finally:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def copied(case: Case, mode: str) -> nn.Module:
    return copy.deepcopy(case.model).train(mode == "train")


def trial(case: Case, tool: str, matrix: str, mode: str) -> dict[str, Any]:
    """One untimed run: the value, its residual, what it did to the model; or why there is none."""
    model = copied(case, mode)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    try:
        if tool.startswith("hessian-eigenthings"):
            _raise_limit(tool, case, matrix, mode)
        started = time.perf_counter()
        answer = called(tool, case, model, matrix, mode)
        spent = time.perf_counter() - started
    except ImportError as error:
        return {"not_run": f"not installed ({error.name})"}
    except Exception as error:
        lines = str(error).splitlines() or [""]
        return {"not_run": f"{type(error).__name__}: {lines[0][:200]}"}
    harm = [name for name, t in model.state_dict().items() if not torch.equal(t, before[name])]
    row: dict[str, Any] = {"lambda_max": answer[0], "residual": case.residual(matrix, mode, answer[1], answer[0])}
    row["seconds"] = spent
    row["moved"] = harm
    row["mode_changed"] = model.training != (mode == "train")
    row["gradients_left"] = any(p.grad is not None for p in model.parameters())
    return row


def _raise_limit(tool: str, case: Case, matrix: str, mode: str) -> None:
    """To the smallest of a row of iteration limits with which it converges."""
    for case.iterations[matrix, mode, tool.endswith(ROUNDED)] in (8, 12, 16, 24, 32, 48, 64, 100):
        try:
            called(tool, case, copied(case, mode), matrix, mode)
            return
        except NotEnough:
            continue
    raise RuntimeError("not converged in 100 iterations")


def seconds(run: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def in_turns(runs: dict[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, float]:
    """Medians over rounds in which all take turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds(run, device))
    return {name: statistics.median(series) for name, series in times.items()}


def race(case: Case, matrix: str, mode: str, rounds: int) -> dict[str, dict[str, Any]]:
    """All tools but the last."""
    rows: dict[str, dict[str, Any]] = {}
    others = [tool for tool in TOOLS if tool not in ("normscope", LAST)]
    for end in ("", ROUNDED) if case.device == "cuda" else ("",):
        last: dict[str, Any] = {}
        for tool in others if end else ("normscope", *others):
            # In train mode PyHessian answers another question, which no tolerance mends.
            if "tolerance" in tool and (last.get("residual", 0.0) <= TOL or last["mode_changed"]):
                continue
            last = rows[tool + end] = trial(case, tool + end, matrix, mode)

    def run(tool: str) -> Callable[[], Found]:
        model = copied(case, mode)
        return lambda: called(tool, case, model.train(mode == "train"), matrix, mode)

    measured = {tool: row for tool, row in rows.items() if "residual" in row}
    quick = {tool: run(tool) for tool, row in measured.items() if row["seconds"] < SLOW and not row["mode_changed"]}
    for tool, spent in in_turns(quick, case.device, rounds).items():
        rows[tool]["seconds"] = spent
    for row in measured.values():
        row["over_normscope"] = row["seconds"] / rows["normscope"]["seconds"]
    return rows


def late(case: Case, tool: str, matrix: str, mode: str, rounds: int) -> dict[str, Any]:
    """A tool that runs once, and ours around it: a machine's minutes differ by more than two tools' places in them."""
    model = copied(case, mode)

    def ours() -> float:
        runs = {"normscope": lambda: normscope(case, model, matrix, mode)}
        return in_turns(runs, case.device, rounds)["normscope"]

    before, row = ours(), trial(case, tool, matrix, mode)
    if "residual" in row:
        row["normscope_seconds"] = [before, ours()]
        row["over_normscope"] = row["seconds"] / statistics.mean(row["normscope_seconds"])
    return row


def all_of(case: Case, matrix: str) -> Memory:
    """The pairs of a Krylov space of `ALL` products, as a fresh look would find."""
    with untouched(case.model) as lent:
        network = Network(lent, case.model, LOSS, case.batch, stats="batch")
        start = fresh_start(network.gradient(), 1, 0)[0]
        return lanczos(network.product(matrix), start, mix=0.0, tol=0.0, most=ALL, keep=ALL).memory


def products_from(memory: Memory, case: Case, matrix: str) -> int:
    with untouched(case.model) as lent:
        network = Network(lent, case.model, LOSS, case.batch, stats="batch")
        fresh = fresh_start(network.gradient(), 1, 0)
        start = warm_start(Memory(memory.values[:KEPT_PAIRS], memory.vectors[:KEPT_PAIRS]), fresh)
        return davidson(network.product(matrix), memory, start[0], fresh[0], tol=TOL).products


def products_from_best(memory: Memory, case: Case, matrix: str, answer: Tensor) -> int:
    with untouched(case.model) as lent:
        network = Network(lent, case.model, LOSS, case.batch, stats="batch")
        start = (memory.vectors @ answer) @ memory.vectors
        return lanczos(network.product(matrix), start, mix=0.0, least=1, tol=TOL).products


def warm(case: Case, matrix: str, steps: int, rounds: int, everything: Memory) -> dict[str, dict[str, float]]:
    """So many training steps on from the last look; everything: `all_of` it."""
    options: dict[str, Any] = {"matrix": matrix, "hessian": False, "solver": ns.curvature.Solver(tol=TOL)}
    last = ns.measure(case.model, LOSS, case.batch, **options)
    twin = copy.deepcopy(case)
    for _ in range(steps):
        twin.train_pass()
        twin.optimizer.step()
    rows = {}
    for name in ("same batch", "another batch"):

        def run(start: Any) -> Any:
            return ns.measure(twin.model, LOSS, twin.batch, start=start, **options)

        fresh, started = run(None), run(last)
        times = in_turns({"fresh": lambda: run(None), "warm": lambda: run(last)}, case.device, rounds)
        rows[name] = {
            "fresh_seconds": times["fresh"],
            "warm_seconds": times["warm"],
            "speedup": times["fresh"] / times["warm"],
            "fresh_products": fresh.products,
            "warm_products": started.products,
            "products_from_all": products_from(everything, twin, matrix),
            "products_from_best": products_from_best(everything, twin, matrix, fresh.vector),
            "warm_over_fresh_lambda": started.lambda_max / fresh.lambda_max,
            "moved": twin.residual(matrix, "train", last.vector),
        }
        twin.batches.reverse()
    return rows


def in_a_row(case: Case, matrix: str) -> dict[str, list[float]]:
    """Searches one training step apart on the same batch, each from the memory of the one before."""
    options: dict[str, Any] = {"matrix": matrix, "hessian": False, "solver": ns.curvature.Solver(tol=TOL)}
    last = ns.measure(case.model, LOSS, case.batch, **options)
    twin = copy.deepcopy(case)
    numbers: dict[str, list[float]] = {"fresh_products": [], "warm_products": [], "speedup": []}
    for _ in range(SEARCHES):
        twin.train_pass()
        twin.optimizer.step()
        spent = {}
        for name, start in (("fresh", None), ("warm", last)):
            started = time.perf_counter()
            look = ns.measure(twin.model, LOSS, twin.batch, start=start, **options)
            spent[name] = time.perf_counter() - started
            numbers[f"{name}_products"].append(look.products)
        numbers["speedup"].append(spent["fresh"] / spent["warm"])
        last = look
    return numbers


def products(case: Case, rounds: int) -> dict[str, float]:
    """Over a gradient of the same network; graphs are kept, as in a measurement."""
    with untouched(case.model) as lent:
        network = Network(lent, case.model, LOSS, case.batch, stats="batch")
        v = torch.randn(network.size, device=case.device)
        runs: dict[str, Callable[[], Any]] = {"gradient": network.gradient}
        for matrix in ("ggn", "hessian"):
            product = network.product(matrix)
            runs[matrix] = lambda product=product: product(v)
        times = in_turns(runs, case.device, 3 * rounds)
    return {"gradient_ms": 1e3 * times["gradient"]} | {m: times[m] / times["gradient"] for m in ("ggn", "hessian")}


def resident() -> float:
    """Peak MiB of this process; getrusage's would count that of the process that started it."""
    (line,) = (row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM"))
    return float(line.split()[1]) / 2**10


def peak(name: str, device: str, batch: int, what: str) -> float:
    """MiB; of device memory, or resident in this process beyond what it takes to import torch."""
    empty = resident() if device == "cpu" else 0.0
    case = Case(name, device, batch, 0)
    case.optimizer.zero_grad()
    runs: dict[str, Callable[[], Any]] = {
        "step": case.train_pass,
        "ggn": lambda: normscope(case, case.model, "ggn", "train"),
        "hessian": lambda: normscope(case, case.model, "hessian", "train"),
    }
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        runs[what]()
        return torch.cuda.max_memory_allocated() / 2**20
    runs[what]()
    return resident() - empty


def peaks(name: str, device: str, batch: int) -> dict[str, float]:
    mib = {}
    for what in ("step", "ggn", "hessian"):
        command = [sys.executable, __file__, "--device", device, "--batch", str(batch), "--peak", name, what]
        mib[what] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"step_mib": mib["step"]} | {what: mib[what] / mib["step"] for what in ("ggn", "hessian")}


def show(name: str, rows: dict[str, dict[str, Any]]) -> None:
    print(f"{name}")
    for tool, row in rows.items():
        if "not_run" in row:
            print(f"  {tool:28} {row['not_run']}")
            continue
        harm = f"moved {len(row['moved'])} tensors" if row["moved"] else ""
        harm += " left the mode changed" if row["mode_changed"] else ""
        print(
            f"  {tool:28} {row['seconds']:8.3f} s {row['over_normscope']:6.2f}x  lambda {row['lambda_max']:.5g} "
            f"residual {row['residual']:.1e} {harm}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--network", choices=[name for d in ("cpu", "cuda") for name in networks(d)], help="one alone")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60, help="of training, for the second point")
    parser.add_argument("--peak", nargs=2, metavar=("NETWORK", "WHAT"), help="print one peak and end")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time, each on one core, for cost")
    parser.add_argument("--only", nargs="+", choices=(*PARTS, COST), default=PARTS, help="some parts alone")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.peak:
        print(peak(args.peak[0], args.device, args.batch, args.peak[1]))
        return
    chosen = [args.network] if args.network else list(networks(args.device))
    if unknown := set(chosen) - set(networks(args.device)):
        parser.error(
            f"{', '.join(unknown)} is not run on {args.device}; choose from {', '.join(networks(args.device))}"
        )
    torch.backends.cudnn.allow_tf32 = False
    result: dict[str, Any] = {
        "schema": 1,
        "environment": environment(args.device),
        "load": os.getloadavg()[0],
        "input": [args.batch, 3, SIDE, SIDE],
        "tol": TOL,
        "product": {},
        "race": {},
        "warm": {},
        "memory": {},
    }

    def keep() -> None:
        result["load_at_end"] = os.getloadavg()[0]
        if args.out:
            args.out.write_text(json.dumps(result, indent=1) + "\n")

    if COST in args.only:
        result[COST] = {}

        def row(name: str, numbers: dict[str, Any]) -> None:
            result[COST].setdefault(name, {}).update(numbers)
            keep()
            print(name, json.dumps(numbers))

        costs(args.batch, row, args.jobs)
        return
    for network in chosen:
        points = {}
        for steps in (0, args.steps) if args.device == "cpu" else (args.steps,):
            case = Case(network, args.device, args.batch, steps)
            point = f"{network}, {f'after {steps} steps' if steps else 'initialization'}"
            points[point] = case
            if "product" in args.only:
                result["product"][point] = products(case, args.rounds)
                keep()
            for mode, matrix in itertools.product(STATS, ("hessian", "ggn")) if "race" in args.only else ():
                rows = result["race"][f"{point}, {mode}, {matrix}"] = race(case, matrix, mode, args.rounds)
                show(f"{point}, {mode}, {matrix}", rows)
                keep()
            for matrix in ("ggn", "hessian") if "warm" in args.only else ():
                numbers, everything = result["warm"].setdefault(point, {}), all_of(case, matrix)
                for more in (1, 10):
                    numbers[f"{matrix}, {more} steps on"] = warm(case, matrix, more, args.rounds, everything)
                    keep()
                numbers[f"{matrix}, in a row"] = in_a_row(case, matrix)
                keep()
        if "memory" in args.only:
            result["memory"][network] = peaks(network, args.device, args.batch)
            keep()
        ends = ("", ROUNDED) if args.device == "cuda" else ("",)
        for (point, case), mode, matrix, end in itertools.product(points.items(), STATS, ("hessian", "ggn"), ends):
            if rows := result["race"].get(f"{point}, {mode}, {matrix}"):
                rows[LAST + end] = late(case, LAST + end, matrix, mode, args.rounds)
                show(f"{point}, {mode}, {matrix}", {LAST + end: rows[LAST + end]})
                keep()
    for key in ("warm", "product", "memory"):
        print(key, json.dumps(result[key], indent=1))


if __name__ == "__main__":
    main()
