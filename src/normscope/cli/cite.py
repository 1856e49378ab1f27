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
            {"key": one.key, "type": one.kind, "about": one.about, "seed": one.seed} | dict(one.fields)
            for one in sources
        ]
        typer.echo(json.dumps({"schema": 1, "sources": rows}, indent=1))
        return
    typer.echo("\n\n".join(f"% {one.about}\n{one.bibtex()}" for one in sources))


def _uses(used: list[str]) -> list[str]:
    from normscope.choices import check_choice
    from normscope.sources import USES

    verbs = [one for one in used if one in USES]
    for one in used:
        if one not in USES and not Path(one).exists():
            check_choice("a verb or a run", one, USES)
    runs = [Path(one) for one in used if one not in USES]
    if runs:
        from normscope.report.result_files import sections_of

        verbs += [use for section in sections_of(runs) for use in section.uses]
    return verbs
