"""Functions of the user's, by `path/to/file.py:name` or `package.module:name`."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from normscope.choices import check_choice


def load(reference: str) -> Callable[..., Any]:
    """The function that `reference` names; a file's own folder, or the current one, can be imported from."""
    where, _, name = reference.rpartition(":")
    if not where or not name:
        raise ValueError(f"Name a function as path/to/file.py:name or package.module:name; got {reference!r}.")
    module = _file(Path(where)) if where.endswith(".py") else _module(where)
    own = [
        key
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
    if not hasattr(module, name) and not own:
        raise ValueError(f"{where} has no function of that name, nor any of its own.")
    if not hasattr(module, name):
        check_choice(f"the function of {where}", name, own)
    found = getattr(module, name)
    if not callable(found):
        raise ValueError(f"{reference} is not a function but of type {type(found).__name__}.")
    return found


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        there = [one.name for one in sorted(path.parent.glob("*.py"))] if path.parent.is_dir() else []
        near = get_close_matches(path.name, there, n=1)
        raise ValueError(
            f"There is no file {path}." + (f" Did you mean {path.with_name(near[0])}?" if near else " Check its path.")
        )
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Under its name, so that a loader's worker processes find its classes; never in the place of another module.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"There is no module {name} here or installed. For a file write path/to/file.py:name."
        ) from None
