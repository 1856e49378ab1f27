"""Diagnosers that NormFaults scores: a file for each tool, with `findings(setup)`.

A tool's own names are mapped to problems here, once, from its documentation and its code. The maps were written before
any score, and no tool saw a case before.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from normscope import Setup


@dataclass(frozen=True)
class Found:
    """One finding of a tool.

    name: a problem, an alias of problems, or the tool's own name where it stands for no problem. severity: "note",
    "warning" or "error". fix: what the tool advises, as it says it. apply: a function that makes the fixed setup of a
    faulty one, where the fix can be applied without a person.
    """

    name: str
    severity: str
    text: str = ""
    fix: str = ""
    apply: Callable[[Setup], Setup] | None = None


Diagnoser = Callable[[Setup], Sequence[Found]]
# Name on the command line: the module here.
DIAGNOSERS = {"normscope": "ours", "losses": "losses"}


def diagnoser(name: str) -> Diagnoser:
    """The function of a tool. The tool is imported here, so that others run without it."""
    found: Diagnoser = importlib.import_module(f"faults.opponents.{DIAGNOSERS[name]}").findings
    return found
