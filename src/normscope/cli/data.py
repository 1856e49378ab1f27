"""`normscope data`: the data sets that are too large to ship."""

import json
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.describing import described

app = typer.Typer(
    help="Example: normscope data fetch mnist\n\nFetch MNIST or CIFAR-10 with their checksums.",
    short_help="Fetch MNIST or CIFAR-10 with their checksums.",
    no_args_is_help=True,
)


@app.callback()
def _verbs() -> None:
    pass


def fetch(
    name: Annotated[str, typer.Argument(help="mnist or cifar10")],
    data_root: Annotated[
        Path | None, typer.Option(envvar="NORMSCOPE_DATA", help="Folder to keep it in; a per-user cache if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the place as JSON.")] = False,
) -> None:
    """Download a data set, check it, and say where it is.

    Example: normscope data fetch mnist --data-root ~/data
    """
    from normscope.data import fetch as fetch_data

    place = fetch_data(name, data_root)
    typer.echo(json.dumps({"schema": 1, "name": name, "folder": str(place)}) if as_json else place)


app.command(**described(fetch))(fetch)
