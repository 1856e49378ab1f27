"""What goes out with a version: one description, one version number, the Pythons that are tested."""

import re
import tomllib
from pathlib import Path

import pytest

import normscope

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def words(name):
    """The text of a file on one line, without Markdown's stars."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").replace("*", "").split())


@pytest.mark.parametrize("name", ["README.md", "mkdocs.yml", "CITATION.cff"])
def test_one_sentence_says_what_it_is_for(name):
    assert PROJECT["description"] in words(name)


def test_one_version_number():
    assert f"version: {normscope.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert heading.group(1) == normscope.__version__
    assert "### Numbers changed" in (ROOT / "CHANGELOG.md").read_text()


def test_the_citation_and_the_command_cite_have_one_title():
    from normscope.sources import NORMSCOPE

    assert NORMSCOPE.fields["title"] in words("CITATION.cff")


def test_every_python_that_is_promised_is_tested():
    promised = {one.split(" :: ")[-1] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", one)}
    matrix = re.search(r"python: \[(.*)\]", (ROOT / ".github/workflows/test.yml").read_text()).group(1)
    assert set(re.findall(r"[\d.]+", matrix)) == promised


def test_nothing_is_published_without_a_person():
    yaml = pytest.importorskip("yaml")
    for name in ("publish", "docs"):
        flow = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
        publishing = flow["jobs"]["publish"]
        # YAML reads the key `on` as True.
        assert list(flow[True]) == ["workflow_dispatch"] or "workflow_dispatch" in publishing["if"]
        assert publishing["permissions"]["id-token"] == "write"
