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
        rows = [
            {"name": result.name, "state": result.state, "says": result.says, "seconds": result.seconds}
            for result in results
        ]
        typer.echo(json.dumps({"schema": 1, "checks": rows}, indent=1))
    else:
        for result in results:
            typer.echo(f"{result.state:8} {result.name:16} {result.says}")
    if any(result.state == "fails" for result in results):
        raise typer.Exit(1)
