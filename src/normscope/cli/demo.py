"""`normscope demo`: the effect of BatchNorm on two small networks, within two minutes."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.printing import console
from normscope.results import plain
from normscope.saving import check_folder


def demo(
    out: Annotated[Path, typer.Option(help="Output folder for figures, summary and numbers.")] = Path("normscope-demo"),
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Random seed of data, batches and initial weights.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Train small networks with and without BatchNorm on embedded data and compare them.

    Example: normscope demo --seed 1
    """
    import torch
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from normscope.demo import run_demo, total_steps
    from normscope.report.demo_folder import write_demo
    from normscope.report.sections.demo import COLUMNS, findings, table_rows

    # Check the folder before a minute of training, not after it.
    check_folder(out, "--out")
    # Layers this small are slower on two threads, and up to 600 times slower beside another busy process.
    torch.set_num_threads(1)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total_steps())
        runs = run_demo(
            seed=seed,
            on_run=lambda label: progress.update(task, description=label),
            on_step=lambda step: progress.advance(task),
        )
    written = write_demo(runs, out)
    if as_json:
        rows = [
            {
                "task": run.task,
                "norm": run.norm,
                "lr": run.lr,
                "steps": run.training.steps,
                "final_loss": run.training.final_loss,
                "diverged_at": run.training.diverged_at,
                "test_loss": run.test_loss,
                "test_accuracy": run.test_accuracy,
            }
            for run in runs
        ]
        document = {"schema": 1, "runs": rows, "findings": findings(runs), "written": list(map(str, written))}
        typer.echo(json.dumps(plain(document), indent=1, allow_nan=False))
        return
    table = Table(*COLUMNS, title="What BatchNorm changed", box=SIMPLE, padding=0, pad_edge=False)
    for row in table_rows(runs):
        table.add_row(*row)
    terminal = console()
    terminal.print(table)
    for sentence in findings(runs):
        terminal.print(f"- {sentence}", soft_wrap=True)
    terminal.print("Written: " + ", ".join(str(path) for path in written), soft_wrap=True)
    typer.echo(f"See it: normscope report {shlex.quote(str(out))}", err=True)
