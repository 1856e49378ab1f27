"""The built site: it builds strictly, and its reference has every public name and every option of the command line."""

import importlib
import os
import pkgutil
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import normscope

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs mkdocs: pip install 'normscope[docs]'")


def _public():
    """Package and name of everything in an `__all__`."""
    names = [found.name for found in pkgutil.walk_packages(normscope.__path__, "normscope.")]
    skipped = ("__main__", "noise_kernel")
    for package in ["normscope", *(name for name in names if not name.endswith(skipped))]:
        for name in getattr(importlib.import_module(package), "__all__", ()):
            yield package, name


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture(scope="module")
def reference(site):
    return {page.parent.name: page.read_text(encoding="utf-8") for page in (site / "reference").glob("**/index.html")}


def test_stored_results_come_along(site):
    assert (site / "files/results/theory-lambda.json").exists()


def test_every_public_name_is_in_the_reference(reference):
    everything = "\n".join(reference.values())
    missing = []
    for package, name in _public():
        if isinstance(getattr(importlib.import_module(package), name), ModuleType):
            present = f"<code>{name}</code>" in everything
        elif package == "normscope":
            present = name == "__version__" or bool(
                re.search(rf'href="[^"]*#normscope\.[\w.]*{name}"', reference["reference"])
            )
        else:
            present = f'id="{package}.{name}"' in everything
        if not present:
            missing.append(f"{package}.{name}")
    assert missing == []


def test_every_field_of_a_result_has_a_meaning(reference):
    assert [name for name, page in reference.items() if "see the type." in page] == []


def test_every_option_is_documented_with_its_meaning(reference):
    from typer.main import get_command

    from normscope.cli import app

    page = reference["command-line"]
    rows = [re.findall(r"<td>(.*?)</td>", row, flags=re.DOTALL) for row in page.split("<tr>")]
    meanings = {}
    for names, meaning, _, _ in (row for row in rows if len(row) == 4):
        for name in re.findall(r"<code>(.*?)</code>", names):
            meanings.setdefault(name, []).append(meaning)
    verbs = get_command(app).commands
    commands = [*(verbs[name] for name in verbs if name != "data"), *verbs["data"].commands.values(), get_command(app)]
    options = [
        option
        for command in commands
        for one in command.params
        if one.param_type_name == "option" and not {"--install-completion", "--show-completion"} & set(one.opts)
        for option in one.opts
        if option != "--help"
    ]
    assert len(options) > 50
    for option in set(options):
        assert len(meanings.get(option, [])) == options.count(option), option
        assert all(len(meaning) > 10 for meaning in meanings[option]), option


def test_no_link_inside_the_site_is_broken(site):
    """Anchors too: a link to a heading that was renamed is found."""
    pages = {page: page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    ids = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    broken = []
    for page, text in pages.items():
        for link in re.findall(r'<a [^>]*href="([^"]+)"', text):
            if page.name == "404.html" or re.match(r"\w+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (anchor and target in ids and anchor not in ids[target]):
                broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []


def test_inner_products_are_shown(site):
    """A browser hides what it takes for a tag: <g, y> has to be escaped."""
    hidden = []
    for page in site.rglob("*.html"):
        body = re.sub(r"<(script|style).*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        hidden += [f"{page.relative_to(site)}: {tag}" for tag in re.findall(r"<\w+,[^<>]*>", body)]
    assert hidden == []
    assert "&lt;g,yh" in (site / "evidence/reproductions/santurkar-2018/index.html").read_text(encoding="utf-8")


def test_formulas_are_set(site):
    pages = [page.read_text(encoding="utf-8") for page in site.rglob("*.html")]
    assert not any("```math" in page or "language-math" in page for page in pages)
    assert 'aria-label="\\eta^{*} = \\frac{2\\,(1+\\mu)}{\\lambda_{\\max}}"' in (
        site / "reference/measure/index.html"
    ).read_text(encoding="utf-8")


def test_pages_that_docstrings_name_are_links(reference):
    assert 'href="../../evidence/errata/#E-MF-6"' in reference["theory"]
    assert [name for name, page in reference.items() if re.search(r"docs/[\w-]+/[\w-]+\.md", page)] == []
