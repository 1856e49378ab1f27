"""One HTML file that holds style, script and numbers. It fetches nothing, and no text of the user becomes markup.

Text goes through `html.escape`. The numbers and labels of the charts stand in a script element as JSON, with `<`, `>`
and `&` as \\u escapes, so that no label can end the element. The page's script makes elements and sets text, never
markup. A content security policy allows the page's own style and script by their hashes and nothing else: no other
script runs, and no request leaves the page.
"""

import base64
import hashlib
import html
import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from normscope._version import __version__
from normscope.messages import severity
from normscope.report.chart import DARK, LIGHT
from normscope.report.document import Said, Section, Table


def page(sections: Sequence[Section], *, title: str, command: str, live: str = "") -> str:
    """The text of the whole file.

    Args:
        command: the command that made this page, as typed.
        live: the version of the content, where a server behind the page answers requests for a newer one; else empty.
    """
    style, script = _style(), _asset("page.js")
    state = f' data-live="{html.escape(live)}"' if live else ""
    fetches = "connect-src 'self'; " if live else ""
    policy = (
        f"default-src 'none'; {fetches}img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="generator" content="normscope {__version__}">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body{state}>\n{_header(title, live)}\n<main>\n{body(sections, command)}\n"
        f'</main>\n<div id="tip" role="status" aria-live="polite" hidden></div>\n<script>{script}</script>\n'
        "</body>\n</html>\n"
    )


def body(sections: Sequence[Section], command: str) -> str:
    """The part of the page that changes as rows arrive: verdicts, evidence and settings."""
    charts = [chart.plain() for section in sections for chart in section.charts]
    numbers = iter(range(len(charts)))
    # One result needs no heading of its own in each part of the page.
    heads = [f"<h3>{html.escape(section.title)}</h3>" if len(sections) > 1 else "" for section in sections]
    verdicts = "".join(map(_verdicts, sections, heads))
    evidence = "".join(_evidence(section, head, numbers) for section, head in zip(sections, heads, strict=True))
    return (
        f'<section id="verdicts"><h2>What this means for you</h2>{verdicts}</section>\n'
        f'<section id="evidence"><h2>Evidence</h2>{evidence}</section>\n'
        f'<section id="made"><h2>How it was made</h2>{"".join(map(_made, sections, heads))}'
        f"<h4>This page</h4><pre>{html.escape(command)}</pre>"
        f"<p><small>Written by normscope {__version__}.</small></p></section>\n"
        f'<script type="application/json" id="charts">{island(charts)}</script>'
    )


def island(value: Any) -> str:
    r"""JSON that may stand inside a script element, whatever its strings contain.

    Example:
        >>> island("</script>")
        '"\\u003c/script\\u003e"'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _header(title: str, live: str) -> str:
    state = '<span id="live" role="status">live</span>' if live else ""
    return (
        f'<header><p class="brand">normscope</p><h1>{html.escape(title)}</h1>{state}'
        '<button type="button" id="theme" aria-label="Switch between light and dark">light / dark</button></header>\n'
        "<noscript><p>Figures and sorting need JavaScript; verdicts, tables and settings do not.</p></noscript>"
    )


def _verdicts(section: Section, heading: str) -> str:
    items = (
        "".join(map(_said, section.in_order())) or '<li class="note"><span class="mark">note</span>Nothing yet.</li>'
    )
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in section.notes)
    small = f"<details><summary>Notes ({len(section.notes)})</summary><ul>{notes}</ul></details>" if notes else ""
    return f'{heading}<ul class="verdicts">{items}</ul>{small}'


def _said(said: Said) -> str:
    mark = severity(said.good)
    why = "; ".join(part for part in (said.formula, said.source) if part)
    text = html.escape(said.text)
    # The formula and the source open with a click on the sentence.
    words = (
        f'<details class="why"><summary>{text}</summary><small>{html.escape(why)}</small></details>' if why else text
    )
    return f'<li class="{mark}"><span class="mark">{mark}</span><div>{words}</div></li>'


def _evidence(section: Section, heading: str, numbers: Iterator[int]) -> str:
    parts = []
    for chart in section.charts:
        number = next(numbers)
        parts.append(
            f'<figure class="chart" data-chart="{number}"><figcaption><b>{html.escape(chart.title)}</b> '
            f"{html.escape(chart.caption)}</figcaption></figure>"
        )
    parts += map(_table, section.tables)
    return f"{heading}{''.join(parts) or '<p>Nothing to draw yet.</p>'}"


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{html.escape(str(name))}</th>' for name in table.columns)
    rows = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in table.rows)
    return (
        f'<div class="scroll"><table class="sortable"><caption>{html.escape(table.title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cell(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'<td class="number" data-value="{value!r}" title="{value!r}">{value:.4g}</td>'
    return f"<td>{html.escape('' if value is None else str(value))}</td>"


def _made(section: Section, heading: str) -> str:
    command = f"<pre>{html.escape(section.command)}</pre>" if section.command else ""
    return f"{heading}{command}{_pairs('Settings', section.settings)}{_pairs('Environment', section.environment)}"


def _pairs(name: str, rows: dict[str, Any]) -> str:
    listed = "".join(f"<dt>{html.escape(str(k))}</dt><dd>{html.escape(_text(v))}</dd>" for k, v in rows.items())
    return f"<h4>{name}</h4><dl>{listed}</dl>" if rows else ""


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        shown = [_text(item) for item in value]
        return (
            ", ".join(shown) if len(shown) <= 12 else f"{shown[0]}, {shown[1]}, ... {shown[-1]} ({len(shown)} values)"
        )
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@cache
def _style() -> str:
    """The style sheet, with the palette of the charts as `--c0`, `--c1`, ..."""
    style = _asset("page.css")
    for paper, palette in (("light", LIGHT), ("dark", DARK)):
        colours = " ".join(f"--c{place}: {colour};" for place, colour in enumerate(palette))
        style = style.replace(f"/* series: {paper} */", colours)
    return style


@cache
def _asset(name: str) -> str:
    return files("normscope.report").joinpath("static", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
