"""The table that `normscope solve` prints and the files that it writes: the convergence figure and the numbers."""

from pathlib import Path

from normscope.report.drawing import draw
from normscope.report.sections.solve import solve_section
from normscope.results import write_json
from normscope.results.environment import environment
from normscope.results.invocation import command
from normscope.results.saving import save_figure
from normscope.solve.comparison import Comparison, MethodRun

SCHEMA = 1


def columns(comparison: Comparison) -> tuple[str, ...]:
    """Names of the columns of `table_rows`."""
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
    """One row for each method, in the order of `columns`."""
    return [_row(entry) for entry in comparison.entries]


def write_solve(comparison: Comparison, title: str, folder: Path) -> list[Path]:
    """Writes convergence.png and results.json; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "convergence.png", folder / "results.json"]
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
    (chart,) = solve_section("Solve", result).charts
    save_figure(draw(chart), written[0], dpi=150)
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
