"""Load and call user functions named `path/to/file.py:name` or `package.module:name`.

Any exception of their files or functions becomes one ValueError that names the user's file and line.
"""

import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from normscope.messages import brief, first_line, quoted
from normscope.messages.choices import check_choice


def called(reference: str, purpose: str, **arguments: Any) -> Any:
    """Load the function that `reference` names, call it, and return its result.

    Args:
        reference: `path/to/file.py:name` or `package.module:name`.
        purpose: the purpose of the function, in words that follow "was to", such as "build the model".
        arguments: arguments of the function.

    Raises:
        ValueError: for any exception of the file or the function, also `SystemExit`; Ctrl-C passes through.
    """
    function = load(reference)
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        names = ", ".join(arguments) or "no arguments"
        raise ValueError(f"{reference} must {purpose} with {names}: {brief(str(error))}.") from error
    except ValueError:
        # The arguments of a built-in function cannot be inspected.
        pass
    with said_once(f"{reference} was to {purpose}"):
        return function(**arguments)


@contextmanager
def said_once(doing: str) -> Iterator[None]:
    """A context for user code: any exception becomes one ValueError that begins with `doing` and has file and line."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ValueError(f"{doing} and raised {first_line(error)}{place_of(error)}.") from error


def place_of(error: BaseException) -> str:
    """The place of the error in the user's own code, as " (file.py, line 3)"; "" if it is in a library only."""
    if isinstance(error, SyntaxError) and error.filename:
        # The message of a SyntaxError ends with the place.
        return ""
    libraries = [Path(__file__).parents[1], *map(Path, set(sysconfig.get_paths().values()))]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.suffix == ".py" and frame.lineno and not any(folder in path.resolve().parents for folder in libraries):
            return f" ({path.name}, line {frame.lineno})"
    return ""


def load(reference: str) -> Callable[..., Any]:
    """The function that `reference` names; its file may import from its own folder, a module from the current one."""
    where, _, name = reference.rpartition(":")
    if not where or not name:
        raise ValueError(f"Name a function as path/to/file.py:name or package.module:name; got {quoted(reference)}.")
    module = _file(Path(where)) if where.endswith(".py") else _module(where)
    own = [
        key
        for key, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
    with said_once(f"{where} was asked for {brief(name, 80)}"):
        exists = hasattr(module, name)
        function = getattr(module, name, None)
    if not exists and not own:
        raise ValueError(f"{where} has no function of that name, nor any of its own.")
    if not exists:
        check_choice(f"the function of {where}", name, own)
    if not callable(function):
        raise ValueError(f"{reference} is not a function but of type {type(function).__name__}.")
    return function


def _file(path: Path) -> ModuleType:
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a plain file. Name a file of Python code.")
    if not path.is_file():
        names = [file.name for file in sorted(path.parent.glob("*.py"))] if path.parent.is_dir() else []
        near = get_close_matches(path.name, names, n=1)
        raise ValueError(
            f"There is no file {path}." + (f" Did you mean {path.with_name(near[0])}?" if near else " Check its path.")
        )
    _can_import_from(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Registered under its name, so that worker processes of a loader find its classes; never over another module.
    known = sys.modules.setdefault(path.stem, module)
    try:
        with said_once(f"{path} was imported"):
            spec.loader.exec_module(module)
    except BaseException:
        if known is module:
            del sys.modules[path.stem]
        raise
    return module


def _module(name: str) -> ModuleType:
    missing = f"There is no module {brief(name)} here or installed. For a file write path/to/file.py:name."
    if not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(missing)
    _can_import_from(Path.cwd())
    with said_once(f"{name} was imported"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
    raise ValueError(missing)


def _can_import_from(folder: Path) -> None:
    if str(folder) not in sys.path[:1]:
        sys.path.insert(0, str(folder))
