"""`normscope demo`: a small network predicted, measured, trained and watched, in under 90 seconds."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.printing import console
from normscope.results import plain
from normscope.results.saving import check_folder


def demo(
    out: Annotated[Path, typer.Option(help="Output folder for figures, summary and numbers.")] = Path("normscope-demo"),
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Random seed of data, batches and initial weights.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Predict, measure, train and watch a small network on embedded data; print the numbers beside what happened.

    Example: normscope demo --seed 1
    """
    import torch
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from normscope.demo import run_demo, total_steps
    from normscope.report.demo_folder import write_demo
    from normscope.report.sections.demo import TITLE, findings, outcome, table

    # Check the folder before a minute of training, not after it.
    check_folder(out, "--out")
    # Layers this small are slower on two threads, and up to 600 times slower beside another busy process.
    torch.set_num_threads(1)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total_steps())
        found = run_demo(
            seed=seed,
            on_run=lambda label: progress.update(task, description=label),
            on_step=lambda step: progress.advance(task),
        )
    written = write_demo(found, out)
    said = findings(found)
    if as_json:
        cases = [
            {
                "norm": case.norm,
                "loss": case.loss,
                "predicted": case.predicted,
                "measured": case.measured,
                "first_guess": case.first_guess,
                "runs": [
                    {"share": run.share, "lr": run.lr, "test_accuracy": run.test_accuracy, "outcome": outcome(run)}
                    for run in case.runs
                ],
            }
            for case in found.cases
        ]
        sentences = [{"good": one.good, "text": one.text} for one in said]
        document = {"schema": 2, "cases": cases, "findings": sentences, "written": list(map(str, written))}
        typer.echo(json.dumps(plain(document), indent=1, allow_nan=False))
        return
    columns, rows = table(found)
    caption = "predicted, measured: eta*.  0.25x to 4x: test images right when trained at that multiple of it"
    shown = Table(*columns, title=TITLE, caption=caption, box=SIMPLE, padding=0, pad_edge=False)
    for row in rows:
        shown.add_row(*row)
    terminal = console()
    terminal.print(shown)
    for one in said:
        terminal.print(f"- {one.text}", soft_wrap=True)
    terminal.print("Written: " + ", ".join(str(path) for path in written), soft_wrap=True)
    page = shlex.quote(str(out / "page.html"))
    typer.echo(f"See it: normscope report {shlex.quote(str(out))} --out {page}", err=True)
