"""All entries and their experiments by name, in the order in which they are listed.

`entry.py` explains how to add a claim or a figure. This file needs no change then.
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from normscope.papers.entry import Entry
from normscope.papers.experiment import Experiment


@cache
def all_entries() -> dict[str, Entry]:
    """The entry of each file in `normscope.papers.entries`, in the order of file names."""
    package = import_module("normscope.papers.entries")
    entries: dict[str, Entry] = {}
    for module in sorted(iter_modules(package.__path__), key=lambda module: module.name):
        entry: Entry = import_module(f"{package.__name__}.{module.name}").ENTRY
        if entry.name in entries:
            raise ValueError(f"Two entries are called {entry.name!r}. Rename one of them.")
        entries[entry.name] = entry
    return entries


@cache
def all_experiments() -> dict[str, Experiment]:
    """The experiments that some entry needs."""
    return {experiment.name: experiment for entry in all_entries().values() for experiment in entry.needs}
