"""Options of the command line from the code, in place of one line of the page: <!-- options: measure -->."""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import typer
from typer.main import get_command
from typer.models import ArgumentInfo

from normscope.cli import app

_OPTIONS = re.compile(r"^<!-- options: ([\w ]+) -->$", re.MULTILINE)
_TYPES = {str: "text", Path: "path", int: "integer", float: "number", bool: "flag"}


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return expanded(markdown)


def expanded(markdown: str) -> str:
    """The page with its lines of options replaced."""
    known = dict(commands())
    return _OPTIONS.sub(lambda found: _table(found[1], known[found[1]]), markdown)


def commands(group: typer.Typer = app, before: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every command by its words; the options of the whole program are those of "normscope"."""
    if not before and group.registered_callback:
        yield "normscope", group.registered_callback.callback
    for one in group.registered_commands:
        yield before + (one.name or one.callback.__name__.replace("_", "-")), one.callback
    for inner in group.registered_groups:
        yield from commands(inner.typer_instance, f"{before}{inner.name} ")


def options(words: str, function: Callable[..., Any]) -> Iterator[tuple[list[str], Any, Any, Any]]:
    """Names, description, type and default of each argument and option of a command."""
    parsed: Any = get_command(app)
    for word in [] if words == "normscope" else words.split():
        parsed = parsed.commands[word]
    by_name = {one.name: one for one in parsed.params}
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind, info = get_args(hints[name])
        names = [*by_name[name].opts, *by_name[name].secondary_opts]
        if isinstance(info, ArgumentInfo):
            names = [info.metavar or name.upper()]
        yield names, info, kind, parameter.default


def _table(words: str, function: Callable[..., Any]) -> str:
    rows = ["| argument or option | meaning | type | default |", "|---|---|---|---|"]
    for names, info, kind, default in options(words, function):
        meaning = " ".join((info.help or "").split()).replace("|", "\\|")
        if info.envvar:
            meaning += f" Environment variable: `{info.envvar}`."
        rows.append(
            f"| {', '.join(f'`{name}`' for name in names)} | {meaning} | {_type(kind, info)} | {_default(default)} |"
        )
    return "\n".join(rows)


def _type(kind: Any, info: Any) -> str:
    inner = [one for one in get_args(kind) if one is not NoneType] or [kind]
    many = list(get_args(inner[0]))
    word = _TYPES.get(many[0] if many else inner[0], "text")
    limits = "".join(
        f", {words} {end}" for words, end in (("at least", info.min), ("at most", info.max)) if end is not None
    )
    return word + limits + ", any number" * bool(many)


def _default(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if isinstance(default, bool):
        return "on" if default else "off"
    return "" if default in (None, [], ()) else f"`{default}`"
