"""`normscope sweep`: train a grid of networks and draw the phase diagram."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normscope.cli.printing import console
from normscope.results import plain

if TYPE_CHECKING:
    from normscope.sweeping import Plan


def sweep(
    plan: Annotated[Path, typer.Argument(help="TOML file that describes the grid; see examples/.")],
    out: Annotated[Path, typer.Option(help="Output folder for the journal and the results.")] = Path("normscope-sweep"),
    device: Annotated[str | None, typer.Option(help="Device: cpu or cuda. Default: the GPU if there is one.")] = None,
    engine: Annotated[str, typer.Option(help="Engine that runs the trainings: local or ray.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster to join. Default: start Ray on this machine.")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Data folder. Default: $NORMSCOPE_DATA.")] = None,
    group: Annotated[
        int | None,
        typer.Option(min=1, help="Number of networks trained at once. Default: as many as fit into free memory."),
    ] = None,
    lines: Annotated[bool, typer.Option(help="Draw eta* by theory and by measured curvature too.")] = True,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print one line for each group of networks in place of the progress bar.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print boundary and agreement as JSON.")] = False,
) -> None:
    """Train a grid of networks to completion, find where training starts to diverge, and draw the phase diagram.

    Stop at any moment and run the same command again: no finished network is trained twice.

    Example: normscope sweep examples/sweep_digits.toml --out runs
    """
    from rich.box import SIMPLE
    from rich.table import Table

    from normscope.report.boundary_table import boundary_columns, boundary_rows, words
    from normscope.report.sweep_folder import write_phase
    from normscope.sweeping import Plan
    from normscope.sweeping import sweep as run
    from normscope.sweeping.running import check_call

    described = Plan.from_toml(plan)
    try:
        check_call(out, device=device, engine=engine, address=address, group=group)
        eta_stars = _evidence_lines(described, out, root, device, as_json) if lines else {}
        diagram = run(
            described, out, device=device, engine=engine, address=address, root=root, group=group, quiet=quiet
        )
    except KeyboardInterrupt:
        typer.echo("Stopped. Finished trainings are kept; the same command goes on from there.", err=True)
        raise typer.Exit(1) from None
    except ImportError as error:
        raise ValueError(str(error)) from error
    written = write_phase(diagram, eta_stars, out)
    if as_json:
        edges = [asdict(edge) for edge in diagram.boundary()]
        agreement = [asdict(distance) for distance in diagram.agreement(eta_stars).values()]
        said = {"schema": 1, "boundary": edges, "agreement": agreement, "written": list(map(str, written))}
        typer.echo(json.dumps(plain(said), indent=1, allow_nan=False))
        return
    terminal = console()
    # The names of all columns fit a terminal of 80 characters.
    table = Table(
        *boundary_columns(eta_stars), title=f"Boundary over {described.axis}", box=SIMPLE, padding=(0, 1, 0, 0)
    )
    for row in boundary_rows(diagram, eta_stars):
        table.add_row(*row)
    terminal.print(table)
    for distance in diagram.agreement(eta_stars).values():
        terminal.print(f"- {words(distance)}", soft_wrap=True)
    modes = sorted({f"{outcome.mode}{f' ({outcome.note})' if outcome.note else ''}" for outcome in diagram.outcomes})
    terminal.print(f"- Trained {', '.join(modes)}.", soft_wrap=True)
    terminal.print("Written: " + ", ".join(str(path) for path in written), soft_wrap=True)


def _evidence_lines(
    plan: "Plan", folder: Path, root: Path | None, device: str | None, as_json: bool
) -> dict[str, dict[float, float]]:
    """eta* by measurement and by theory, computed before the first training for readers who follow the sweep."""
    from normscope.sweeping import measured_line, predicted_line
    from normscope.sweeping.diagram import lines_file, save_lines, stored_lines

    place = lines_file(folder, plan.hash)
    try:
        if place.is_file():
            return stored_lines(place)
    except ValueError:
        # A full disk or a kill cut the file short: it is written again below.
        pass
    ways: dict[str, Callable[..., dict[float, float]]] = {
        "measured": partial(measured_line, device=device),
        "predicted": predicted_line,
    }
    eta_stars = {}
    for name, line_of in ways.items():
        try:
            eta_stars[name] = line_of(plan, root=root)
        except ValueError as error:
            # The sweep goes on without this line.
            typer.echo(f"- No line {name}: {error}", err=as_json)
    if len(eta_stars) == len(ways):
        save_lines(eta_stars, place)
    return eta_stars
