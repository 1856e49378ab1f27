"""Diagnosers that NormFaults scores: a file for each tool, with `findings(setup)`.

A tool's own names are mapped to problems here, once, from its documentation and its code. The maps were written before
any score, and no tool saw a case before.
"""

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

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
DIAGNOSERS = {
    "normscope": "ours",
    "losses": "losses",
    "torch-audit": "torch_audit",
    "torchmortem": "torchmortem",
    "trainpulse": "trainpulse",
    "torchdiag": "torchdiag",
    "neural-observatory": "neural_observatory",
}


def diagnoser(name: str) -> Diagnoser:
    """The function of a tool. The tool is imported here, so that others run without it."""
    found: Diagnoser = importlib.import_module(f"faults.opponents.{DIAGNOSERS[name]}").findings
    return found


def merged(findings: Iterable[Found]) -> list[Found]:
    """One finding for each name, with its highest severity; the most severe first, else in the order they came.

    Tools repeat a finding for each layer and step, and only the first two findings count.
    """
    order = ("error", "warning", "note")
    first: dict[str, Found] = {}
    for found in findings:
        known = first.get(found.name)
        if known is None or order.index(found.severity) < order.index(known.severity):
            first[found.name] = found if known is None else replace(known, severity=found.severity)
    return sorted(first.values(), key=lambda found: order.index(found.severity))
