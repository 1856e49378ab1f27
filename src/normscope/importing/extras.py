"""Import libraries of optional extras on use, never when normscope is imported."""

from importlib import import_module
from typing import Any


def need(module: str, extra: str) -> Any:
    """The imported module; if it is missing, an ImportError with the `pip install` command.

    Example:
        >>> need("no_such_library", "ray")
        Traceback (most recent call last):
            ...
        ImportError: no_such_library is not installed. Bring it with: pip install 'normscope[ray]'
    """
    try:
        return import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ImportError(f"{library} is not installed. Bring it with: pip install 'normscope[{extra}]'") from error
