"""`normscope data`: download data sets that are too large for the package."""

import json
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.describing import described

app = typer.Typer(
    help="Example: normscope data fetch mnist\n\nDownload MNIST or CIFAR-10 and verify checksums.",
    short_help="Download MNIST or CIFAR-10 and verify checksums.",
    no_args_is_help=True,
)


@app.callback()
def _verbs() -> None:
    pass


def fetch(
    name: Annotated[str, typer.Argument(help="Name of the data set: mnist or cifar10.")],
    data_root: Annotated[
        Path | None,
        typer.Option(envvar="NORMSCOPE_DATA", help="Folder for the data set. Default: a cache of the user's."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print name and folder as JSON.")] = False,
) -> None:
    """Download a data set, verify its checksums and print its folder.

    Example: normscope data fetch mnist --data-root ~/data
    """
    from normscope.data import fetch as fetch_data

    place = fetch_data(name, data_root)
    typer.echo(json.dumps({"schema": 1, "name": name, "folder": str(place)}) if as_json else place)


app.command(**described(fetch))(fetch)
