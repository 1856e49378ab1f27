"""Reference pages from the code: every name of a package's `__all__`, in place of one line of the page.

<!-- names: normscope.curvature -->      an entry for each function, class and constant
<!-- summary: normscope -->              a table with one line for each name
"""

import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

REFERENCE = Path(__file__).parents[1] / "reference"
_NAMES = re.compile(r"^<!-- names: ([\w.]+) -->$", re.MULTILINE)
_SUMMARY = re.compile(r"^<!-- summary: ([\w.]+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return expanded(markdown)


def expanded(markdown: str) -> str:
    """The page with its lines of names replaced."""
    markdown = _NAMES.sub(lambda found: _entries(found[1], markdown, found.start()), markdown)
    return _SUMMARY.sub(lambda found: _summary(found[1]), markdown)


def public(package: str) -> list[str]:
    """Names of `__all__` that are no modules: functions, classes, constants."""
    module = importlib.import_module(package)
    return [name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)]


def _entries(package: str, page: str, place: int) -> str:
    """Entries of functions, of classes, then a table of constants; without names that the reference has elsewhere."""
    module = importlib.import_module(package)
    kinds = {name: _kind(getattr(module, name)) for name in public(package)}
    here = [name for name in kinds if kinds[name] < 2 and f"{package}.{name}" not in _entered()]
    # Below a heading of the page, entries are one level deeper.
    below = "\n    options: {heading_level: 3}" if "\n## " in page[:place] else ""
    parts = [f"::: {package}.{name}{below}" for name in sorted(here, key=lambda name: (kinds[name], name.lower()))]
    constants = sorted(name for name in kinds if kinds[name] == 2)
    if constants:
        rows = [f'| <a id="{package}.{name}"></a>`{name}` | {_value(getattr(module, name))} |' for name in constants]
        parts.append("\n".join(["| constant | value |", "|---|---|", *rows]))
    return "\n\n".join(parts)


@cache
def _entered() -> frozenset[str]:
    """Names that have an entry of their own on a page of the reference."""
    pages = (page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
    return frozenset(name for page in pages for name in re.findall(r"^::: ([\w.]+)$", page, flags=re.MULTILINE))


def _value(thing: Any) -> str:
    """The value of a constant; the keys of a dictionary; the place of a function of another library."""
    if callable(thing):
        return f"`{thing.__module__}.{thing.__qualname__}`"
    if isinstance(thing, dict):
        return ", ".join(f"`{key!r}`" for key in thing)
    return f"`{thing!r}`"


def _kind(thing: Any) -> int:
    if not getattr(thing, "__module__", "normscope").startswith("normscope"):
        return 2
    return 1 if inspect.isclass(thing) else 0 if callable(thing) else 2


def _summary(package: str) -> str:
    module = importlib.import_module(package)
    rows = ["| name | kind | what it is |", "|---|---|---|"]
    for name in sorted(module.__all__, key=str.lower):
        thing = getattr(module, name)
        kind = "package" if isinstance(thing, ModuleType) else ("function", "class", "constant")[_kind(thing)]
        place = f"{package}.{name}"
        link = f"`{name}`" if kind in ("package", "constant") else f"[`{name}`][{place}]"
        rows.append(
            f"| {link} | {kind} | {_first_sentence(thing) if kind != 'constant' else 'version of the package'} |"
        )
    return "\n".join(rows)


def _first_sentence(thing: Any) -> str:
    text = (inspect.getdoc(thing) or "").split("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")
