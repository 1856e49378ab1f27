"""What `normscope solve` leaves behind: a figure of the gaps with the bound, and the numbers."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from normscope.environment import environment
from normscope.invocation import command
from normscope.results import write_json
from normscope.saving import save_figure
from normscope.solve.comparison import Comparison, MethodRun

SCHEMA = 1
# Okabe and Ito's palette, told apart with any colour vision; the line style says the same once more.
_STYLE: dict[str, dict[str, Any]] = {
    "gdnp": {"color": "#0072B2", "linestyle": "-"},
    "gd": {"color": "#D55E00", "linestyle": "--"},
    "agd": {"color": "#009E73", "linestyle": "-."},
    "bngd": {"color": "#CC79A7", "linestyle": ":"},
    "lbfgs": {"color": "#E69F00", "linestyle": (0, (5, 1, 1, 1, 1, 1))},
}


def columns(comparison: Comparison) -> tuple[str, ...]:
    return (
        "method",
        "iterations",
        f"to gap {comparison.target:g}",
        "final gap",
        "gradient norm",
        "seconds",
        "ended by",
    )


def table_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """One row a method, in the order of `columns`."""
    return [_row(entry) for entry in comparison.entries]


def write_solve(comparison: Comparison, title: str, folder: Path) -> list[Path]:
    """Writes convergence.png and results.json; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "convergence.png", folder / "results.json"]
    save_figure(_figure(comparison, title), written[0], dpi=150)
    promise = comparison.promise
    result = {
        "kind": "comparison",
        "schema": SCHEMA,
        "title": title,
        "best": comparison.best,
        "target": comparison.target,
        "notes": comparison.notes,
        "promise": None
        if promise is None
        else {"of": promise.name, "measured": promise.measured.tolist(), "bound": promise.bound.tolist()},
        "methods": {
            entry.method: {
                "iterations": entry.solution.n_iter,
                "to_target": entry.iterations,
                "seconds": entry.seconds,
                "reason": entry.solution.reason,
                "gap": entry.gap.tolist(),
            }
            for entry in comparison.entries
        },
        "command": command(),
        "environment": environment(),
    }
    write_json(written[1], result)
    return written


def _row(entry: MethodRun) -> tuple[str, ...]:
    return (
        entry.method,
        str(entry.solution.n_iter),
        "never" if entry.iterations is None else str(entry.iterations),
        f"{max(entry.gap[-1], 0.0):.3g}",
        f"{entry.solution.history['gradient_norm'][-1]:.3g}",
        f"{entry.seconds:.3g}",
        entry.solution.reason,
    )


def _figure(comparison: Comparison, title: str) -> Figure:
    promise = comparison.promise
    panels = 1 if promise is None else 2
    figure = Figure(figsize=(6 * panels, 4.5), layout="constrained")
    ax, *more = figure.subplots(1, panels, squeeze=False)[0]
    # Below rounding of F a gap is noise, and zero has no place on a log scale.
    floor = 1e-16 * max(abs(comparison.best), 1e-300)
    for entry in comparison.entries:
        ax.semilogy(np.maximum(entry.gap, floor), label=entry.method, **_STYLE[entry.method])
    if promise is not None:
        (bounded,) = more
        bounded.semilogy(np.maximum(promise.measured, floor), label="measured", **_STYLE["gdnp"])
        bounded.semilogy(np.maximum(promise.bound, floor), color="black", linewidth=0.8, label="bound")
        bounded.set_ylabel(promise.name)
    ax.axhline(comparison.target, color="grey", linewidth=0.5)
    ax.set_ylabel("loss above the best")
    figure.suptitle(title)
    for panel in (ax, *more):
        panel.set_xlabel("iteration")
        panel.grid(alpha=0.3)
        panel.legend()
    return figure
