"""Every rule has a page; its failing example fails and its passing example passes."""

import re
from pathlib import Path

import pytest

from normscope.diagnosis.registry import rules
from normscope.diagnosis.rule_pages import SECTIONS, diagnosed, file_name, index, page, parts

FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "rules"
RULES = list(rules().values())
# The rule's fault needs several processes.
NO_EXAMPLE = {"NS115"}


def without_numbers(text):
    """The text in words, since another processor rounds otherwise; tests of documentation compare the numbers."""
    return re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?|\s+", " ", text).split()


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
    stored = (FOLDER / file_name(rule)).read_text(encoding="utf-8")
    assert without_numbers(stored) == without_numbers(page(rule))
    assert "No findings by 1 rule." in stored
    assert rule.id in NO_EXAMPLE or "The fix:" in stored


def test_the_index_lists_every_rule():
    assert (FOLDER / "index.md").read_text(encoding="utf-8") == index()
    assert {path.name for path in FOLDER.iterdir()} == {"index.md", *map(file_name, RULES)}
