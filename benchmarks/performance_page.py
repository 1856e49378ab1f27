"""docs/evidence/performance.md from the stored results of the benchmarks.

    python benchmarks/performance_page.py > docs/evidence/performance.md

A test compares the page with what this script prints.
"""

import json
from pathlib import Path
from typing import Any

from solve_tables import tables as solve_tables

STORED = Path(__file__).parent / "results"
Row = dict[str, Any]


def page() -> str:
    return "\n".join(
        [
            _HEAD,
            *_known_models(_stored("known-models-h200")),
            *_commands(_stored("start-cpu"), _stored("theory-cpu")),
            *_norms(_stored("norms-cpu"), _stored("norms-h200")),
            *_snapshots(),
            *_sweeps(_stored("sweep-h200"), _stored("sweep-cpu")),
            *_solvers(_stored("solve-cpu")),
        ]
    )


def _stored(name: str) -> Row:
    found: Row = json.loads((STORED / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _link(name: str) -> str:
    return f"[numbers](../../benchmarks/results/{name}.json)"


def _place(made: Row) -> str:
    return f"{made['device']}, torch {made['torch']}"


def _known_models(stored: Row) -> list[str]:
    """Three numbers called eta* for one network: predicted, measured at the same start, measured after training."""
    models = stored["models"]
    first = next(iter(models.values()))
    where = f"Measured on {_place(stored['environment'])}, full float32; predicted on "
    lines = ["## Models people know", "", f"{where}{_place(first['predict']['environment'])}. {_KNOWN}"]
    lines[-1] += f" ({_link('known-models-h200')}; `python benchmarks/known_models.py`)."
    lines += ["", "| | " + " | ".join(_shape(name, row) for name, row in models.items()) + " |"]
    lines += ["|---" * (len(models) + 1) + "|"]
    for title, cell in _KNOWN_ROWS.items():
        lines.append(f"| {title} | " + " | ".join(cell(row) for row in models.values()) + " |")
    return [*lines, ""]


def _shape(name: str, row: Row) -> str:
    return f"{name}, {row['image']}x{row['image']}, batch {row['batch']}"


def _predicted(row: Row) -> str:
    found = row["predict"]
    if "eta_star" not in found:
        return f"{float(found['seconds']):.2f} s; refused by name"
    return f"{float(found['seconds']):.2f} s; lambda_max {found['lambda_max']:.3g}, eta\\* {found['eta_star']:.2g}"


def _measured(found: Row) -> str:
    took = f"{found['seconds']:.1f} s, {found['products']} products, memory x {float(found['memory']):.1f}"
    return f"{took}; lambda_max {found['lambda_max']:.3g}, eta\\* {found['eta_star']:.2g}"


def _watched(found: Row) -> str:
    count = "1 snapshot" if found["looks"] == 1 else f"{found['looks']} snapshots"
    return (
        f"{count} in {found['steps']} steps; {100 * found['share']:.1f} % of the time, memory x {found['memory']:.1f}"
    )


_KNOWN_ROWS = {
    "training step": lambda row: f"{1e3 * row['step']['seconds']:.0f} ms, {float(row['step']['gib']):.1f} GiB",
    "`predict` at the start, SGD with momentum 0.9": _predicted,
    "`measure` at the start, SGD with momentum 0.9": lambda row: _measured(row["measure"]),
    "`measure` after the watched steps, the optimizer in force": lambda row: _measured(row["measure, trained"]),
    "`Monitor`, `budget=0.05`": lambda row: _watched(row["monitor"]),
}


def _commands(start: Row, theory: Row) -> list[str]:
    lines = ["## predict and the command line", ""]
    resnet = theory["resnet50"]
    lines.append(
        f"`predict` of a ResNet-50 at 224x224 on one core takes {resnet['first']:.2f} s in the first call of a process "
        f"and {resnet['later']:.2f} s in later ones ({_link('theory-cpu')}). From the shell, importing torch takes "
        f"most of the time ({_link('start-cpu')}; `python benchmarks/start.py`):"
    )
    lines += ["", "| command | seconds | processor time over that of `import torch` |", "|---|---|---|"]
    for name, row in start["commands"].items():
        title = _COMMANDS.get(name, f"`{name}`")
        lines.append(f"| {title} | {row['wall']:.2f} | {row['of_import_torch']:.2f} |")
    return [*lines, ""]


def _norms(cpu: Row, h200: Row) -> list[str]:
    host = h200["fwd_bwd"]["compiled"]
    spent = sorted(row["host_ms"] for row in host.values() if "host_ms" in row)
    eager = h200["fwd_bwd"]["eager"]["torch.nn"]["host_ms"]
    shape = ["x".join(map(str, one["shape"])) for one in (cpu, h200)]
    lines = ["## Normalization layers", ""]
    lines.append(
        "Forward and backward as a multiple of the eager `nn.BatchNorm2d` in the same run, float32, "
        f"{shape[0]} on two CPU cores and {shape[1]} on one H200 ([CPU](../../benchmarks/results/norms-cpu.json), "
        "[H200](../../benchmarks/results/norms-h200.json); `python benchmarks/norms.py`). The H200's are times of the "
        "device's work, replayed as a CUDA graph. One compiled layer called alone from Python waits for the host: "
        f"{spent[0]:.1f} to {spent[-1]:.1f} ms, the eager `nn.BatchNorm2d` {eager:.1f} ms."
    )
    lines += ["", "| | CPU eager | CPU compiled | H200 eager | H200 compiled |", "|---|---|---|---|---|"]
    columns = [stored["fwd_bwd"][mode] for stored in (cpu, h200) for mode in ("eager", "compiled")]
    for name in _LAYERS:
        lines.append(f"| `{name}` | " + " | ".join(f"{one[name]['ratio_to_eager']:.2f}" for one in columns) + " |")
    return [
        *lines,
        "",
        "The eager l_p layers and the noise are composed of torch operations; compile them for speed.",
        "",
    ]


def _snapshots() -> list[str]:
    lines = ["## A snapshot of the Monitor", "", _SNAPSHOT, ""]
    lines += ["| | pass, ms | landscape | by deep copies | covariate shift | without its first pass | by deep copies |"]
    lines[-1] += " critical rate, forwards |"
    lines.append("|---" * 8 + "|")
    for where in ("cpu", "h200"):
        for name, row in _stored(f"observe-{where}")["cost"].items():
            copied = f"{row['shift_copied']:.2f}" if "shift_copied" in row else ""
            alone = row.get("shift_alone", row["shift"] - 1 / row["layers"])
            lines.append(
                f"| {where.upper()}, {name} | {row['pass_ms']:.1f} | {row['landscape']:.2f} "
                f"| {row['landscape_copied']:.2f} | {row['shift']:.2f} | {alone:.2f} | {copied} "
                f"| {row['critical_forwards']:.1f} |"
            )
    return [*lines, ""]


def _sweeps(h200: Row, cpu: Row) -> list[str]:
    runs = h200["runs"]
    lines = ["## Sweeps", "", _SWEEPS, ""]
    lines += ["| networks | at once | model-steps a second | over one at a time |", "|---|---|---|---|"]
    for name in ("MLP", "CNN"):
        fastest = max(run[name]["alone"] for run in runs if name in run)
        row = next(row for run in runs for row in run.get(name, {}).get("stacked", ()) if row["way"] == "as it is")
        floor = f", {row['of_floor']:.2f} of what memory traffic allows" if "of_floor" in row else ""
        over = f"{row['ratio']:.0f}; {row['rate'] / fastest:.0f} over the fastest ever measured there"
        lines.append(f"| {name}, H200, compiled | {row['members']} | {row['rate']:,.0f}{floor} | {over} |")
    for row in cpu["digits MLP"]["stacked"]:
        how = "compiled" if row["compiled"] else "eager"
        network = f"digits MLP, two CPU cores, {how}"
        lines.append(f"| {network} | {row['members']} | {row['rate']:,.0f} | {row['ratio']:.1f} |")
    return [*lines, ""]


def _solvers(stored: Row) -> list[str]:
    return ["## Solvers", "", _SOLVERS, "", solve_tables(stored), "", _SOLVER_COST]


_LAYERS = ("batch", "l1", "l2", "linf", "noisy", "layer", "group", "instance", "rms")
_COMMANDS = {
    "import torch": '`python -c "import torch"`',
    "help": "`normscope --help`",
    "preact-resnet18": "`normscope predict` of a PreActResNet-18",
    "resnet50": "`normscope predict` of a ResNet-50",
}
_HEAD = """# Performance

<!-- Generated by: python benchmarks/performance_page.py > docs/evidence/performance.md -->

Times and memory from stored runs of `benchmarks/`. Ratios were measured in one run, in turns, so that a busy machine
slows both sides. Races of `measure` against other tools have a [page of their own](../design-notes/curvature-races.md).
"""
_KNOWN = (
    "Both networks start from torch's own initial weights, on noise, with cross-entropy. The three eta\\* differ "
    "because they answer three questions: before any pass, on the first batch, and after some training. A ResNet-50 of "
    "these weights is at the end of `predict`'s reach, as its warning says. The Monitor takes its first snapshot "
    "whatever the budget; a few seconds of training do not yet pay it off"
)
_SNAPSHOT = """\
Cost of a snapshot as multiples of passes of the same network in the same run: a landscape of four points over five
passes, the covariate shift of all layers over as many passes, the critical rate in forward passes. Beside them: loops
that deep-copy the model for each point. `python benchmarks/observe.py`,
[CPU](../../benchmarks/results/observe-cpu.json) (two cores), [H200](../../benchmarks/results/observe-h200.json).
Batches of 64 and 1024 images, 32 and 128 where "small"."""
_SWEEPS = """\
Networks trained in one stack against one at a time with eager PyTorch in the same run
([H200](../../benchmarks/results/sweep-h200.json), [CPU](../../benchmarks/results/sweep-cpu.json); `python
benchmarks/sweep.py`)."""
_SOLVERS = """\
GDNP takes fewer iterations than gradient descent at step 1/L, but **L-BFGS takes fewer in every race below**, and on
badly conditioned data GDNP does not reach the gap within its cap where L-BFGS does. One thread; a cell has iterations
and seconds, or the gap at which a method stopped ("at"). scikit-learn is `LinearRegression` or `LogisticRegression`,
SGD its `SGDClassifier` ([numbers](../../benchmarks/results/solve-cpu.json); `python benchmarks/solve.py`)."""
_SOLVER_COST = """\
A step is a multiple of the products X w and X^T r alone. A halfspace step reads X twice: once in Z w and once in Z^T
of two columns (phi' for the gradient, p for S w). An evaluation along the ray is one exponential for each of the n
samples, and gives value, slope, bend and phi' together. Least squares with d <= 128 forms S and reads X no more.
The data are not copied."""


if __name__ == "__main__":
    print(page())
