"""Every rule has a page; its failing example fails and its passing example passes."""

from pathlib import Path

import pytest

import normscope as ns
from normscope.diagnosis.registry import rules
from normscope.diagnosis.rule_pages import SECTIONS, example, file_name, index, page, parts

FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "rules"
RULES = list(rules().values())
# The rule's fault needs several processes.
NO_EXAMPLE = {"NS115"}


def diagnosed(rule, heading):
    namespace = {"__name__": "example"}
    exec(compile(example(rule, heading), f"{rule.id} {heading}", "exec"), namespace)
    return ns.diagnose(namespace["setup"], rules=rule.id)


@pytest.mark.parametrize("rule", [each for each in RULES if each.id not in NO_EXAMPLE], ids=lambda each: each.id)
def test_the_failing_example_fails(rule):
    found = diagnosed(rule, "Fails")
    assert {each.rule for each in found.findings} == {rule.id}, str(found)
    assert all(each.fix and each.text.endswith(".") for each in found.findings)


@pytest.mark.parametrize("rule", RULES, ids=lambda each: each.id)
def test_the_passing_example_passes(rule):
    found = diagnosed(rule, "Passes")
    assert found.findings == (), str(found)
    assert found.rules == (rule.id,), found.skipped


@pytest.mark.parametrize("rule", RULES, ids=lambda each: each.id)
def test_the_page_is_that_of_the_code(rule):
    """After a change: python -m normscope.diagnosis.rule_pages docs/reference/rules"""
    assert set(SECTIONS[:3]) <= parts(rule).keys()
    assert (FOLDER / file_name(rule)).read_text(encoding="utf-8") == page(rule)


def test_the_index_lists_every_rule():
    assert (FOLDER / "index.md").read_text(encoding="utf-8") == index()
    assert {path.name for path in FOLDER.iterdir()} == {"index.md", *map(file_name, RULES)}
