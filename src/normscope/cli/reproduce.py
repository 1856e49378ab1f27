"""`normscope reproduce`: figures and claims of the sources, run again and judged."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normscope.results.saving import check_folder

if TYPE_CHECKING:
    from normscope.papers import Entry, JudgedStatement
    from normscope.papers.pool import Job


# A line of --list: statement, verdict, seeds and scale, minutes, data, paper.
_ROW = "{:<38} {:<27} {:<20} {:>7}  {:<8} {}"


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of entries or statements, as --list prints them.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="List all statements: verdict, seeds, minutes on one CPU, data, paper.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Recompute verdicts and redraw figures from stored runs.")
    ] = False,
    scale: Annotated[
        str, typer.Option(help="Scale of the runs: small (a laptop) or paper (settings of the source, one GPU).")
    ] = "small",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds for each cell. Default: the number that the rules need.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Device: cpu or cuda. Default: the GPU if there is one.")] = None,
    root: Annotated[Path | None, typer.Option(help="Data folder. Default: $NORMSCOPE_DATA.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the stored runs; new runs are added.")] = Path(
        "results/reproduce"
    ),
    jobs: Annotated[int, typer.Option(min=1, help="Number of parallel processes.")] = 1,
    minutes: Annotated[float | None, typer.Option(help="Stop after this many minutes; finished runs are kept.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Start runs even if they take long on a CPU or longer than --minutes.")
    ] = False,
    gallery: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the project: do as --check does and write the pages and figures of docs/evidence."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Run a figure or claim of the sources again and judge whether it holds.

    New runs add seeds to those stored in --out. Stop at any moment and run the same command again. Exit status 1 if a
    named statement still has too few seeds for its rule at this scale.

    Example: normscope reproduce fig-9 --scale small
    """
    from normscope.papers import Store, judge
    from normscope.papers import reproduce as run
    from normscope.papers.running import of_names

    check_folder(out, "--out")
    if gallery is not None and names:
        raise ValueError(
            f"--gallery writes whole pages and takes no names of entries; got {len(names)}. Leave the names out."
        )
    check = check or gallery is not None
    if show or check:
        chosen = _known(names)
        judged = [claim for entry in chosen for claim in judge(entry, Store(out))]
        judged = of_names(judged, names) if names else judged
        if check:
            _check(chosen, judged, out, gallery)
    elif not names:
        raise ValueError("Name at least one entry, or --list or --check. normscope reproduce --list shows the names.")
    else:
        begun: set[str] = set()
        try:
            judged = run(
                *names, out=out, scale=scale, seeds=seeds, device=device, root=root, jobs=jobs, minutes=minutes,
                yes=yes, on_run=partial(_say, begun),
            )  # fmt: skip
        except KeyboardInterrupt:
            typer.echo("Stopped. Finished runs are kept; the same command goes on from there.", err=True)
            raise typer.Exit(1) from None
        for job in sorted(begun):
            typer.echo(f"{job}: given up, --minutes is over; the next call starts it again", err=True)
        _draw(_known(names), out)
    if as_json:
        typer.echo(json.dumps({"schema": 1, "statements": [claim.plain() for claim in judged]}, indent=1))
    else:
        _print(judged, short=show)
    if not show and not check and any(not claim.parts and scale in claim.statement.scales for claim in judged):
        raise typer.Exit(1)


def _known(names: list[str] | None) -> "list[Entry]":
    from normscope.papers import all_entries
    from normscope.papers.running import named

    return list(dict.fromkeys(named(name)[0] for name in names or all_entries()))


def _say(begun: set[str], job: "Job", seconds: float | None) -> None:
    begun.symmetric_difference_update({str(job)})
    typer.echo(f"{job}: " + ("begun" if seconds is None else f"finished, {seconds:.0f} s"), err=True)


def _print(judged: "list[JudgedStatement]", *, short: bool) -> None:
    from normscope.report.sections.claims import summary

    if short:
        typer.echo(_ROW.format("statement", "verdict", "seeds, scale", "minutes", "data", "paper"))
    for claim in judged:
        count = f"n = {claim.n}" if claim.parts else f"{claim.n} of {claim.statement.n} seeds"
        if short:
            minutes, data = _effort(claim)
            source = claim.entry.source
            typer.echo(_ROW.format(claim.name, claim.in_words, f"{count}, {claim.scale}", minutes, data, source))
        else:
            typer.echo(f"{claim.name:<38} {claim.in_words:<27} {count}, {claim.scale}")
            typer.echo(f"    {claim.statement.words}")
            for part in claim.parts:
                typer.echo(f"    [{'+' if part.holds else '-'}] {part.words}")
    typer.echo(summary(judged))


def _effort(claim: "JudgedStatement") -> tuple[str, str]:
    """Minutes on one CPU for all runs that the statement needs, at the small scale if there is one; its data files."""
    scale = "small" if "small" in claim.statement.scales else "paper"
    needed = claim.entry.cells(claim.statement)
    minutes = sum(experiment.cost(scale, "cpu") for experiment, _ in needed) * claim.statement.n / 60
    data = sorted({experiment.data for experiment, _ in needed if experiment.data})
    return f"{minutes:.2g}" if minutes < 10 else f"{minutes:.0f}", " ".join(data) or "none"


def _draw(chosen: "list[Entry]", out: Path) -> None:
    from normscope.papers import Store
    from normscope.report.drawing import draw
    from normscope.report.sections.claims import claim_charts
    from normscope.results.saving import save_figure

    folder = out / "figures"
    for name, chart in claim_charts(chosen, Store(out)).items():
        folder.mkdir(parents=True, exist_ok=True)
        save_figure(draw(chart), folder / f"{name}.png", dpi=120)
        typer.echo(f"Drawn: {folder / name}.png", err=True)


def _check(chosen: "list[Entry]", judged: "list[JudgedStatement]", out: Path, gallery: Path | None) -> None:
    from normscope.papers import Store
    from normscope.report.gallery import tables, write_gallery
    from normscope.report.sections.claims import claim_charts

    drawn = claim_charts(chosen, Store(out))
    typer.echo(f"{len(drawn)} figures drawn, {len(judged)} verdicts computed.", err=True)
    if gallery is not None:
        written = write_gallery(gallery, chosen, judged, drawn, tables(chosen, Store(out)))
        typer.echo("Written: " + ", ".join(str(path) for path in written), err=True)
