"""`normscope solve`: GDNP and baseline solvers on a table in a CSV file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.printing import console


def solve(
    table: Annotated[Path, typer.Argument(help="CSV file with a header; its numeric columns are the features.")],
    target: Annotated[str, typer.Option(help="Name of the column to predict: numbers, or two classes.")],
    method: Annotated[
        list[str] | None, typer.Option(help="Solver: gdnp, gd, agd, bngd or lbfgs. May be repeated. Default: all.")
    ] = None,
    loss: Annotated[
        str, typer.Option(help="Loss: squared, softplus or sigmoid; auto chooses by the target column.")
    ] = "auto",
    alpha: Annotated[float, typer.Option(help="L2 penalty on the weights.", min=0.0)] = 1e-4,
    max_iter: Annotated[int, typer.Option(help="Largest number of iterations.", min=1)] = 1000,
    tol: Annotated[
        float, typer.Option(help="Stop when the gradient norm falls below TOL times its value at w = 0.", min=0.0)
    ] = 1e-8,
    gap: Annotated[
        float,
        typer.Option(
            help="Count iterations until the loss is within GAP of the best (least squares: times the variance of y)."
        ),
    ] = 1e-6,
    out: Annotated[Path, typer.Option(help="Output folder for the figure and the numbers.")] = Path("normscope-solve"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Solve least squares or a halfspace by GDNP and baselines; print a table, draw convergence and its bound.

    Example: normscope solve data.csv --target y --method gdnp --method gd
    """
    from rich.table import Table

    from normscope.report.solve_folder import columns, table_rows, write_solve
    from normscope.results.saving import check_folder
    from normscope.solve.baselines import METHODS
    from normscope.solve.table import compare_on_table

    check_folder(out, "--out")

    comparison, title = compare_on_table(
        table,
        target=target,
        methods=method or list(METHODS),
        loss=loss,
        alpha=alpha,
        max_iter=max_iter,
        tol=tol,
        gap=gap,
    )
    written = write_solve(comparison, title, out)
    if as_json:
        rows = [
            {
                "method": entry.method,
                "iterations": entry.solution.n_iter,
                "to_target": entry.iterations,
                "final_gap": float(entry.gap[-1]),
                "seconds": entry.seconds,
                "reason": entry.solution.reason,
            }
            for entry in comparison.entries
        ]
        said = {
            "schema": 1,
            "title": title,
            "methods": rows,
            "notes": comparison.notes,
            "written": list(map(str, written)),
        }
        typer.echo(json.dumps(said, indent=1))
        return
    terminal = console()
    shown = Table(*columns(comparison), title=title)
    for row in table_rows(comparison):
        shown.add_row(*row)
    terminal.print(shown)
    for note in comparison.notes:
        terminal.print(f"- {note}", soft_wrap=True)
    terminal.print("Written: " + ", ".join(str(path) for path in written), soft_wrap=True)
