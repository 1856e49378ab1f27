"""A verb's help from its docstring: the example first, then what it does."""

import inspect
from collections.abc import Callable
from typing import Any


def described(verb: Callable[..., Any]) -> dict[str, Any]:
    """`help` and `short_help` for typer: the paragraph that begins with "Example:" moves to the top.

    Example:
        >>> def walk(): "Go.\\n\\nExample: walk home"
        >>> described(walk)
        {'help': 'Example: walk home\\n\\nGo.', 'short_help': 'Go.'}
    """
    # Python leaves docstrings out under -OO.
    parts = (inspect.getdoc(verb) or verb.__name__).split("\n\n")
    ordered = sorted(parts, key=lambda part: not part.startswith("Example:"))
    return {"help": "\n\n".join(ordered), "short_help": " ".join(parts[0].split())}
