"""SARIF holds a result for each finding, at its level and place."""

import json

from diagnosed import network, setup

import normscope as ns


def test_a_finding_becomes_a_result(tmp_path):
    found = ns.diagnose(setup(network(momentum=0.99)), rules=["NS101", "NS105"])
    path = found.sarif(tmp_path / "run.sarif", "train.py")
    run = json.loads(path.read_text())["runs"][0]
    assert [result["ruleId"] for result in run["results"]] == ["NS101", "NS105"]
    assert [result["level"] for result in run["results"]] == ["warning", "note"]
    assert [each["id"] for each in run["tool"]["driver"]["rules"]] == ["NS101", "NS105"]
    (place,) = run["results"][0]["locations"]
    assert place["logicalLocations"] == [{"name": "1", "kind": "module"}]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "train.py"
