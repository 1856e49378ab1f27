"""Load the public names of a package on first use, so that one name does not import all modules."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_first_use(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package.

    A name that equals the name of its module cannot be lazy: importing the module sets the module under that name.

    Args:
        package: name of the package.
        places: the module of each public name, relative to the package.
    """

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{places[name]}"), name)

    return load
