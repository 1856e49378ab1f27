"""Findings as SARIF 2.1.0, the format in which code hosts take the results of checks."""

from collections.abc import Sequence
from typing import Any

from normscope._version import __version__
from normscope.diagnosis.finding import Finding
from normscope.results import plain

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_PAGES = "https://normscope.readthedocs.io/reference/rules/"


def sarif_log(findings: Sequence[Finding], file: str = "") -> dict[str, Any]:
    """The log as plain JSON.

    Example:
        >>> sarif_log([])["version"]
        '2.1.0'
    """
    rules = {each.rule: {"id": each.rule, "name": each.name} for each in findings}
    driver = {"name": "normscope", "version": __version__, "rules": list(rules.values())}
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_result(each, file) for each in findings]}],
    }


def _result(finding: Finding, file: str) -> dict[str, Any]:
    place: dict[str, Any] = {}
    if finding.layers:
        place["logicalLocations"] = [{"name": layer, "kind": "module"} for layer in finding.layers]
    if file:
        place["physicalLocation"] = {"artifactLocation": {"uri": file}, "region": {"startLine": 1}}
    return {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": f"{finding.text} Fix: {finding.fix}"},
        "locations": [place] if place else [],
        "properties": plain({"evidence": str(finding.evidence), "cost": str(finding.cost)}),
    }
