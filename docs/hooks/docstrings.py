"""Docstrings as the reference shows them: formulas as they are written, examples as doctests, fields as a table."""

import re
import sys
from pathlib import Path
from typing import Any

from griffe import Attribute, Class, Extension, Object

sys.path.insert(0, str(Path(__file__).parent))
from fields import meaning


class Readable(Extension):
    """Puts a fence around every formula, names the section `Example:` as the parser does, lists fields of classes."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            known = [one.name for one in getattr(obj, "parameters", ())]
            obj.docstring.value = linked(fenced(one_by_one(obj.docstring.value, known)))

    def on_class_members(self, *, cls: Class, **kwargs: Any) -> None:
        names = [
            name
            for name, member in cls.members.items()
            if isinstance(member, Attribute) and member.annotation is not None and not name.startswith("_")
            and "property" not in member.labels
        ]  # fmt: skip
        if cls.docstring is not None and names and "dataclass" in _decorators(cls):
            cls.docstring.value = with_attributes(cls.docstring.value, names, cls.name)


def _decorators(cls: Class) -> str:
    return " ".join(str(one.value) for one in cls.decorators)


def linked(text: str) -> str:
    """Names of pages as links, and of errata with their numbers; from a page of the reference."""
    text = re.sub(r"docs/evidence/errata\.md, (E-[A-Z]+-\d+)", r"[errata, \1](../../evidence/errata/#\1)", text)
    return re.sub(r"docs/([\w-]+)/([\w-]+)\.md", r"[\2](../../\1/\2/)", text)


def fenced(text: str) -> str:
    """Paragraphs that are indented as a whole are formulas; those under a heading follow it without a blank line."""
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    parts = re.split(r"(\n\s*\n)", text)
    for place, part in enumerate(parts):
        lines = part.strip("\n").split("\n")
        if part.startswith("    ") and all(line.startswith("  ") for line in lines) and ">>>" not in part:
            parts[place] = "```text\n" + "\n".join(line.removeprefix("  ") for line in lines) + "\n```"
    return "".join(parts)


def one_by_one(text: str, known: list[str]) -> str:
    """The docstring with a line of its own for each argument: "a, b: meaning. c: meaning." has three."""
    section = re.search(r"^Args:\n((?:(?: {4}.*)?\n?)+)", text, flags=re.MULTILINE)
    if section is None:
        return text
    start = _start_of(known) if known else re.compile(r"^((?:\w+, )+\w+): ")
    lines = []
    for block in re.split(r"\n(?= {4}\S)", section[1].strip("\n")):
        before, *found = start.split(" ".join(block.split()))
        if before.strip() or not found:
            lines.append(block)
            continue
        for names, words in zip(found[::2], found[1::2], strict=True):
            lines += [f"    {name}: {words.strip()}" for name in names.split(", ")]
    return text[: section.start(1)] + "\n".join(lines) + "\n\n" + text[section.end(1) :].lstrip("\n")


def _start_of(names: list[str]) -> re.Pattern[str]:
    """The beginning of "a, b: meaning", at the start of a line or after a sentence."""
    known = "|".join(map(re.escape, names))
    return re.compile(rf"(?:^|(?<=[.;)\"] ))((?:(?:{known}), )*(?:{known})): ")


def with_attributes(text: str, names: list[str], owner: str) -> str:
    """The docstring with a section of attributes at its end, one for each field.

    Meanings are taken from the docstring's own section "Attributes:" and from sentences "name: meaning." in its text.
    """
    start = _start_of(names)
    text, meanings = _without_section(text)
    kept = []
    for paragraph in text.split("\n\n"):
        line = " ".join(paragraph.split())
        if "Args:" in paragraph or not start.search(line):
            kept.append(paragraph)
            continue
        before, *found = start.split(line)
        if before.strip():
            kept.append(before.strip())
        for these, words in zip(found[::2], found[1::2], strict=True):
            meanings |= dict.fromkeys(these.split(", "), words.strip())
    if not meanings and "Args:" in text:
        return text
    # The order is the docstring's, and behind it that of the class.
    order = list(meanings)
    names = sorted(names, key=lambda name: order.index(name) if name in order else len(order))
    rows = [f"    {name}: {meanings.get(name) or meaning(owner, name)}" for name in names]
    return "\n\n".join([*kept, "Attributes:\n" + "\n".join(rows)])


def _without_section(text: str) -> tuple[str, dict[str, str]]:
    """The docstring without its section "Attributes:", and the meanings in that section."""
    section = re.search(r"^Attributes:\n((?:(?: {4}.*)?\n?)+)", text, flags=re.MULTILINE)
    if section is None:
        return text, {}
    meanings: dict[str, str] = {}
    for block in re.split(r"\n(?= {4}\S)", section[1].strip("\n")):
        names, words = " ".join(block.split()).split(": ", 1)
        meanings |= dict.fromkeys(names.split(", "), words)
    parts = [text[: section.start()].rstrip("\n"), text[section.end() :].strip("\n")]
    return "\n\n".join(part for part in parts if part), meanings
