"""`normscope report`: one HTML page of stored results, or a page that follows a run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from normscope.report.document import Section


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Files or folders that normscope wrote; training runs are shown side by side.")
    ],
    out: Annotated[Path, typer.Option(help="Output HTML file.")] = Path("normscope-report.html"),
    figures: Annotated[Path | None, typer.Option(help="Output folder for every figure as PDF, PNG and SVG.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Serve a page on this machine that follows the runs.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for --serve; 0 for any free port.")] = 8765,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Write one self-contained HTML page with verdicts, evidence and settings.

    Example: normscope report runs/a runs/b --out report.html
    """
    from normscope.messages import severity
    from normscope.report.page_file import write_report
    from normscope.report.result_files import sections_of
    from normscope.results.saving import check_folder

    if serve:
        if as_json:
            raise ValueError("--json prints once and --serve keeps running: give one of them.")
        if figures is not None:
            raise ValueError("--figures draws once and --serve keeps running: give one of them.")
        return _serve(runs, port)
    if figures is not None:
        check_folder(figures, "--figures")
    sections = sections_of(runs)
    written = write_report(sections, out)
    drawn = _drawn(sections, figures) if figures is not None else []
    if as_json:
        document = {
            "schema": 1,
            "written": [str(path) for path in (written, *drawn)],
            "sections": [section.verdict_plain() for section in sections],
        }
        typer.echo(json.dumps(document, indent=1, allow_nan=False))
        return None
    for section in sections:
        for said in section.in_order():
            typer.echo(f"- [{severity(said.good)}] {said.text}")
    typer.echo(f"Written: {written}")
    if figures is not None:
        typer.echo(f"Written: {len(drawn)} files of figures in {figures}")
    return None


def _drawn(sections: "list[Section]", folder: Path) -> list[Path]:
    from normscope.report.drawing import write_figures

    return write_figures(sections, folder)


def _serve(runs: list[Path], port: int) -> None:
    from normscope.report.serving import HOST, Live, server
    from normscope.results.invocation import command

    with server(Live(runs, command()), port) as running:
        typer.echo(f"http://{HOST}:{running.server_port}/")
        typer.echo("Follows the runs as rows arrive; Ctrl-C ends it.", err=True)
        try:
            running.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            typer.echo("Stopped. The same command without --serve writes the page to a file.", err=True)
