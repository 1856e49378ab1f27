"""Whether the fix that a diagnoser names works: the metric with the fault, with its fix, and with the right fix.

A finding with a function `apply` has a fix that can be applied without a person: `apply(setup)` returns the setup to
train in the place of the faulty one.
"""

import json
import math
from functools import cache
from typing import Any

from faults.case import FOLDERS, HERE, Case
from faults.costs import cost, trained
from faults.opponents import Found, diagnoser
from faults.tally import is_found


def fix(case: Case, seed: int, name: str) -> dict[str, Any]:
    """The metrics of one fault and seed; own is that after the first right finding's fix, None if it has no `apply`."""
    stored = _costs(case.half).get((case.name, seed)) or cost(case, seed)
    faulty, clean = stored["faulty"]["metric"], stored["clean"]["metric"]
    finding = first_right(diagnoser(name)(case.setup(seed)), case.right)
    own = None
    if finding is not None and finding.apply is not None:
        own = trained(finding.apply(case.setup(seed)))["metric"]
    return {
        "name": case.name,
        "problem": case.problem,
        "seed": seed,
        "finding": None if finding is None else finding.name,
        "fix": None if finding is None else finding.fix,
        "faulty": faulty,
        "own": own,
        "clean": clean,
        "works": works(faulty, own, clean),
    }


def first_right(findings: Any, right: tuple[str, ...]) -> Found | None:
    """The first of the first two findings that counts as right."""
    for finding in list(findings)[:2]:
        if is_found([{"name": finding.name, "severity": finding.severity}], right):
            return finding
    return None


def works(faulty: float | None, own: float | None, clean: float | None) -> bool:
    """Whether the metric after the fix is closer to that of the clean training than to that of the faulty one.

    A metric is None where the training diverged.

    Example:
        >>> works(0.5, 0.9, 0.95), works(0.5, 0.6, 0.95), works(None, 0.9, 0.95)
        (True, False, True)
    """
    if own is None or clean is None or not math.isfinite(own):
        return False
    return faulty is None or abs(own - clean) < abs(own - faulty)


@cache
def _costs(half: str) -> dict[tuple[str, int], dict[str, Any]]:
    """The stored costs of a half, by case and seed."""
    file = HERE / FOLDERS[half] / "costs.json"
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []
    return {(row["name"], row["seed"]): row for row in rows}
