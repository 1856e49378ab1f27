"""`normscope tune`: name a learning rate after trying a few on copies of the network."""

import json
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.inputs import SETUP_HELP, setup_of, what_was_said
from normscope.cli.printing import console


def tune(
    setup: Annotated[str, typer.Argument(metavar="SETUP", help=SETUP_HELP)],
    steps: Annotated[
        int | None, typer.Option(help="Planned training steps, at least 20. Default: the steps of the setup.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="Schedule: constant, cosine or linear. Default: the setup's scheduler, or constant."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            help="Largest share of the training that the search may cost. Default: 0.05; 0.1 below 1000 steps."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="Engine of the rehearsals: local or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster to join.")] = None,
    store: Annotated[
        Path | None, typer.Option(help="JSONL file of finished rehearsals; the same command goes on from there.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of what the copies draw, such as dropout.")] = 0,
    out: Annotated[Path | None, typer.Option(help="JSON file to write the result to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Name a learning rate after trying a few on copies of the network.

    The function returns an ns.Setup, a dict of its fields, or a tuple (model, loss_fn, batches, optimizer).

    Example: normscope tune train.py:setup --steps 2000 --schedule cosine
    """
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from normscope.tuning import tune as tune_setup

    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise ValueError(f"--out names a JSON file in an existing folder; got {out}.")
    described = setup_of(setup)
    try:
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("rehearsing", total=None)
            tuning = tune_setup(
                described,
                steps=steps,
                schedule=schedule,
                budget=budget,
                engine=engine,
                address=address,
                store=store,
                seed=seed,
                progress=lambda used, most: bar.update(task, completed=used, total=most),
            )
    except KeyboardInterrupt:
        if store is None or not store.exists():
            raise
        kept = f"finished rehearsals are in {store}, and the same command goes on from there."
        typer.echo(f"normscope: interrupted; {kept}", err=True)
        raise typer.Exit(1) from None
    except (RuntimeError, IndexError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{setup} could not be rehearsed: {what_was_said(error)}") from error
    if out is not None:
        tuning.save(out)
    if as_json:
        typer.echo(json.dumps(tuning.plain(), indent=1, allow_nan=False))
        return
    terminal = console()
    terminal.print(str(tuning), soft_wrap=True)
    rows = tuning.frame()[["lr", "steps", "first_loss", "last_loss", "held_out_loss", "diverged_at"]]
    table = Table(*rows.columns)
    for row in rows.itertuples(index=False):
        table.add_row(*("" if value is None or value != value else f"{value:.3g}" for value in row))
    terminal.print(table)
