"""`normscope doctor`: check the installation."""

import json
from typing import Annotated

import typer


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False) -> None:
    """Check the installation: versions, device and extras, each tried quickly. Exit status 1 if one fails.

    Example: normscope doctor
    """
    from rich.console import Console
    from rich.progress import Progress

    from normscope.installation import CHECKS, examine

    results = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(CHECKS))
        for check in CHECKS:
            progress.update(task, description=check.name)
            results.append(examine(check))
            progress.advance(task)
    if as_json:
        rows = [{"name": one.name, "state": one.state, "says": one.says, "seconds": one.seconds} for one in results]
        typer.echo(json.dumps({"schema": 1, "checks": rows}, indent=1))
    else:
        for one in results:
            typer.echo(f"{one.state:8} {one.name:16} {one.says}")
    if any(one.state == "fails" for one in results):
        raise typer.Exit(1)
