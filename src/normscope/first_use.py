"""Packages whose names load on first use, so that who needs one module of them does not wait for all."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_first_use(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`; places: the module of each public name.

    A name that is also its module's cannot be lazy: importing the module puts it in the name's place.
    """

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{places[name]}"), name)

    return load
