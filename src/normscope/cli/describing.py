"""The help of a verb, made of its docstring: the example first, then the description."""

import inspect
from collections.abc import Callable
from typing import Any


def described(verb: Callable[..., Any]) -> dict[str, Any]:
    """`help` and `short_help` for typer, with the paragraph that begins with "Example:" at the top.

    Example:
        >>> def walk(): "Go.\\n\\nExample: walk home"
        >>> described(walk)
        {'help': 'Example: walk home\\n\\nGo.', 'short_help': 'Go.'}
    """
    # Python leaves docstrings out under -OO.
    parts = (inspect.getdoc(verb) or verb.__name__).split("\n\n")
    # The terminal breaks the lines: those of the source are joined.
    paragraphs = [" ".join(part.split()) for part in parts]
    ordered = sorted(paragraphs, key=lambda part: not part.startswith("Example:"))
    return {"help": "\n\n".join(ordered), "short_help": paragraphs[0]}
