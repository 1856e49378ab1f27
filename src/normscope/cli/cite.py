"""`normscope cite`: BibTeX of the sources behind verbs and runs."""

import json
from pathlib import Path
from typing import Annotated

import typer


def cite(
    used: Annotated[
        list[str] | None, typer.Argument(help="Verbs, or files and folders of runs. Default: all sources.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the sources as JSON.")] = False,
) -> None:
    """Print BibTeX entries of the sources that a verb or a run uses.

    Example: normscope cite predict runs/mnist > references.bib
    """
    from normscope.sources import sources_for

    sources = sources_for(_uses(used or []))
    if as_json:
        rows = [
            {"key": source.key, "type": source.kind, "about": source.about, "seed": source.seed} | dict(source.fields)
            for source in sources
        ]
        typer.echo(json.dumps({"schema": 1, "sources": rows}, indent=1))
        return
    typer.echo("\n\n".join(f"% {source.about}\n{source.bibtex()}" for source in sources))


def _uses(used: list[str]) -> list[str]:
    from normscope.messages.choices import check_choice
    from normscope.sources import USES

    verbs = [key for key in used if key in USES]
    for key in used:
        if key not in USES and not Path(key).exists():
            check_choice("a verb or a run", key, USES)
    runs = [Path(key) for key in used if key not in USES]
    if runs:
        from normscope.report.result_files import sections_of

        verbs += [use for section in sections_of(runs) for use in section.uses]
    return verbs
