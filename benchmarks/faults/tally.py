"""Recall, intervals and false alarms of stored scores.

A row is one case with one seed; `score.py` makes them. Seeds of one fault are no independent trials, so that intervals
count faults: a fault that is found with two seeds of three counts as two thirds.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from faults.problems import problem_of

COUNTS = ("warning", "error")
Row = Mapping[str, Any]


def rank(findings: Sequence[Mapping[str, Any]], right: Sequence[str]) -> int | None:
    """The place of the first finding that names a right problem, from 1; None if none does.

    Example:
        >>> rank([{"name": "momentum-convention"}, {"name": "batch-leak"}], ["samples-see-each-other"])
        2
    """
    for place, finding in enumerate(findings, 1):
        if set(problem_of(finding["name"])) & set(right):
            return place
    return None


def is_found(findings: Sequence[Mapping[str, Any]], right: Sequence[str]) -> bool:
    """Whether a right problem is among the first two findings, as warning or error."""
    return any(rank([finding], right) and finding["severity"] in COUNTS for finding in findings[:2])


def is_alarm(findings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any finding is a warning or an error."""
    return any(finding["severity"] in COUNTS for finding in findings)


def wilson(hits: float, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a share.

    Example:
        >>> [round(float(end), 3) for end in wilson(9, 10)]
        [0.596, 0.982]
    """
    if not trials:
        return 0.0, 1.0
    share, weight = hits / trials, z * z / trials
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / trials + weight / (4 * trials)) / (1 + weight)
    return max(0.0, middle - half), min(1.0, middle + half)


def summary(rows: Iterable[Row]) -> dict[str, Any]:
    """Recall over faults, false alarms over clean setups, errors, and time."""
    faults, clean = defaultdict(list), defaultdict(list)
    rows = list(rows)
    for row in rows:
        (clean if row["problem"] is None else faults)[row["name"]].append(row)
    found = sum(sum(row["found"] for row in of) / len(of) for of in faults.values())
    alarms = sorted(name for name, of in clean.items() if any(row["alarm"] for row in of))
    seconds = sorted(row["seconds"] for row in rows)
    return {
        "faults": len(faults),
        "recall": found / len(faults) if faults else None,
        "recall_interval": wilson(found, len(faults)),
        "missed": sorted(name for name, of in faults.items() if not all(row["found"] for row in of)),
        "clean": len(clean),
        "false_alarms": alarms,
        "false_alarm_interval": wilson(len(alarms), len(clean)),
        "errors": sorted({row["name"] for row in rows if row["error"]}),
        "seconds_median": seconds[len(seconds) // 2] if seconds else None,
        "seconds_largest": seconds[-1] if seconds else None,
    }
