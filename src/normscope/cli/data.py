"""`normscope data`: the data sets that are too large to ship."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Fetch MNIST or CIFAR-10 with their checksums.", no_args_is_help=True)


@app.callback()
def _verbs() -> None:
    pass


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="mnist or cifar10")],
    data_root: Annotated[
        Path | None, typer.Option(envvar="NORMSCOPE_DATA", help="Folder to keep it in; a per-user cache if not given.")
    ] = None,
) -> None:
    """Download a data set, check it, and say where it is.

    Example: normscope data fetch mnist --data-root ~/data
    """
    from normscope.data import fetch as fetch_data

    typer.echo(fetch_data(name, data_root))
