"""A diagnosis: each finding with its evidence, cost and fix, and what was looked at."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from normscope.report.document import Said, Section, Table

_COLUMNS = ("rule", "severity", "layers", "what is wrong", "evidence", "limit", "cost", "fix")


def diagnosis_section(title: str, stored: Mapping[str, Any]) -> Section:
    """The section of a diagnosis: its fields, with numbers as numbers."""
    findings = stored["findings"]
    said = tuple(
        Said(
            None if each["severity"] == "note" else False,
            f"{each['rule']} {each['name']} ({each['severity']}): {each['text']}",
            f"{_evidence(each['evidence'])}; cost: {_cost(each['cost'])}; fix: {each['fix']}",
            each["source"],
        )
        for each in findings
    )
    if not findings:
        said = (Said(True, f"No findings by {len(stored['rules'])} rules."),)
    looked = tuple(f"Looked at: {each}" for each in stored["looked_at"])
    skipped = stored["skipped"]
    reasons = tuple(
        f"Not judged: {', '.join(rule for rule, why in skipped.items() if why == reason)} ({reason})."
        for reason in dict.fromkeys(skipped.values())
    )
    return Section(
        title,
        said,
        tables=tuple(_tables(stored)),
        notes=(*looked, *reasons, *stored["notes"]),
        settings=stored["settings"],
        environment=stored["environment"],
        uses=("diagnose",),
    )


def _tables(stored: Mapping[str, Any]) -> Iterator[Table]:
    if stored["findings"]:
        yield Table("Findings", _COLUMNS, [_row(each) for each in stored["findings"]])
    measured = stored.get("measured", {})
    if measured:
        rows = [[rule, seen["what"], seen["value"], seen["limit"]] for rule, seen in sorted(measured.items())]
        yield Table("Looked at", ("rule", "quantity", "value", "limit"), rows)


def _row(each: Mapping[str, Any]) -> Sequence[Any]:
    evidence = each["evidence"]
    limit = None if math.isnan(evidence["limit"]) else evidence["limit"]
    name = f"{each['rule']} {each['name']}"
    layers = ", ".join(each["layers"])
    return [name, each["severity"], layers, each["text"], _evidence(evidence), limit, _cost(each["cost"]), each["fix"]]


def _evidence(evidence: Mapping[str, Any]) -> str:
    if math.isnan(evidence["value"]):
        return f"{evidence['what']}: not known"
    return f"{evidence['what']} = {_number(evidence['value'], evidence['spread'])}"


def _cost(cost: Mapping[str, Any]) -> str:
    if math.isnan(cost["value"]):
        return str(cost["how"])
    return f"{_number(cost['value'], cost['spread'])} of {cost['unit']}, {cost['how']}"


def _number(value: float, spread: float) -> str:
    return f"{value:.3g}" if math.isnan(spread) else f"{value:.3g} +- {spread:.2g}"
