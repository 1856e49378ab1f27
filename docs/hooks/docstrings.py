"""Docstrings as the reference shows them: formulas as they are written, examples as doctests."""

import re
from typing import Any

from griffe import Extension, Object


class Formulas(Extension):
    """Puts a fence around every formula, and calls the section `Example:` as the parser does, `Examples:`."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Paragraphs that are indented as a whole are formulas; those under a heading follow it without a blank line."""
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    parts = re.split(r"(\n\s*\n)", text)
    for place, part in enumerate(parts):
        lines = part.strip("\n").split("\n")
        if part.startswith("    ") and all(line.startswith("  ") for line in lines) and ">>>" not in part:
            parts[place] = "```text\n" + "\n".join(line.removeprefix("  ") for line in lines) + "\n```"
    return "".join(parts)
