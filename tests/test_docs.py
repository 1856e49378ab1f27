"""Documentation that runs: code blocks, commands with their output, numbers from stored results."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import docs_numbers
from docs_pages import (
    PAGES,
    ROOT,
    agrees,
    agrees_in_numbers,
    code_of,
    commands_of,
    files_of,
    output_of,
    printed_by,
    put_files,
    shown_below,
)

# Pages whose code takes more than a few seconds, or an extra.
SLOW = {
    "batchnorm-hurting.md",
    "compare-normalizers.md",
    "fine-tuning.md",
    "first-five-minutes.md",
    "hugging-face.md",
    "integrations.md",
    "learning-rate.md",
    "levels-of-evidence.md",
    "spread-over-batches.md",
    "watch-a-run.md",
    "your-own-normalizer.md",
}


def _parameters(chosen, slow=lambda page: True):
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.slow] * slow(page))
        for page in PAGES
        if chosen(page.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("page", _parameters(code_of, lambda page: page.name in SLOW))
@pytest.mark.filterwarnings(
    "ignore:`isinstance\\(treespec, LeafSpec\\)`:FutureWarning", "ignore:The 'train_dataloader'"
)
def test_code_blocks_print_what_is_shown(page, tmp_path, monkeypatch):
    text = page.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    put_files(text, tmp_path)
    for name in files_of(text):
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    shared = {"__name__": "page"}
    for block, shown in zip(code_of(text), shown_below(text), strict=True):
        printed = printed_by(block, page.name, shared)
        assert shown is None or agrees_in_numbers(shown, printed), "\n".join([block, *printed])
    for name in files_of(text):
        sys.modules.pop(Path(name).stem, None)


@pytest.mark.slow
@pytest.mark.parametrize("page", _parameters(commands_of, lambda page: False))
def test_commands_print_what_is_shown(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    put_files(text, tmp_path)
    # Commands may read what the page's code has written.
    code = "\n".join(code_of(text))
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True, capture_output=True, timeout=300)
    for command, shown in commands_of(text):
        printed = output_of(command, tmp_path)
        assert not shown or agrees(shown, printed), "\n".join([command, *printed])


def test_every_verb_is_shown_once():
    from typer.main import get_command

    from normscope.cli import app

    text = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\w+)$", text, flags=re.MULTILINE)
    assert sorted(headings) == sorted(get_command(app).commands)
    shown = [command.split()[1] for command, lines in commands_of(text) if lines]
    assert sorted(shown) == sorted(set(headings) - {"data"})


def test_the_comparison_of_output_can_fail():
    printed = ["lambda_max = 2.34 predicted", "- [ok] fine", "Written: a"]
    assert agrees(["lambda_max = 9.9 predicted", "...", "Written: a"], printed)
    assert agrees(["..."], printed)
    assert not agrees(["lambda_max = 2.34 measured", "..."], printed)
    assert not agrees(["lambda_max = 2.34 predicted"], printed)
    assert not agrees(["lambda_max = 2.34 predicted", "- [warning] fine", "Written: a"], printed)


def test_the_comparison_of_numbers_can_fail():
    printed = ["eta* = 0.615 for SGD", "12 of 40", "last"]
    assert agrees_in_numbers(["eta* = 0.62 for SGD", "12 of 40", "last"], printed)
    assert agrees_in_numbers(["eta* = 0.60 for", "SGD", "..."], printed)
    assert agrees_in_numbers(["...", "12  of 40", "..."], printed)
    assert not agrees_in_numbers(["eta* = 0.7 for Adam", "12 of 40", "last"], printed)
    assert not agrees_in_numbers(["eta* = 0.55 for SGD", "12 of 40", "last"], printed)
    assert not agrees_in_numbers(["eta* = 0.55 for SGD", "..."], printed)
    assert not agrees_in_numbers(["eta* = 0.615 for SGD", "13 of 40", "last"], printed)
    assert not agrees_in_numbers(["eta* = 0.615 for SGD", "12 of 40"], printed)


def test_pages_link_to_files_that_exist():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- numbers: " in page.read_text(encoding="utf-8")])
def test_numbers_of_pages_are_what_is_stored(page):
    """After new results: python tests/docs_numbers.py"""
    assert page.read_text(encoding="utf-8") == docs_numbers.filled(page)


def test_a_changed_number_on_a_page_is_found(tmp_path, monkeypatch):
    changed = tmp_path / "docs" / "page.md"
    changed.parent.mkdir()
    changed.write_text("<!-- numbers: accuracy -->\n| predicted lambda_max | 3% |\n<!-- end -->\n")
    monkeypatch.setattr(docs_numbers, "ROOT", tmp_path)
    monkeypatch.setitem(docs_numbers.PARTS, "accuracy", lambda: "| predicted lambda_max | 4% [a](docs/b.md) |")
    expected = "<!-- numbers: accuracy -->\n| predicted lambda_max | 4% [a](b.md) |\n<!-- end -->\n"
    assert docs_numbers.filled(changed) == expected


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_picture_of_the_readme_is_drawn_from_stored_results():
    pictures = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    drawn = pictures["phase_picture"]()
    (line,) = drawn.axes[0].lines
    stored = json.loads((ROOT / "results/phase-mnist-mlp.json").read_text())
    networks = f"{len(stored['cells']):,} trained networks"
    assert networks in drawn.axes[0].get_title()
    assert networks in (ROOT / "README.md").read_text(encoding="utf-8")
    assert sorted(line.get_xdata()) == sorted(eta_star for _, eta_star in stored["lines"]["predicted"])


# Numbers in the words of a page that are no results: versions, thresholds of the code, formulas, years of a source.
NOT_RESULTS = {
    "install.md": {"3.10", "3.11.4", "3.12", "3.13"},
    "fine-tuning.md": {"0.21.2"},
    "tune.md": {"0.8"},
    "monitor.md": {"0.05"},
    "watch-a-run.md": {"0.05"},
    "covariate-shift.md": {"2.1"},
    "order-parameters.md": {"1.467"},
    "learning-path.md": {"0.9", "1.1", "1.9"},
    "README.md": {"2.0", "3.11.4", "3.13"},
}
USER_PAGES = [
    page
    for page in PAGES
    if page.parent in (ROOT, *(ROOT / "docs" / part for part in ("tutorials", "how-to", "explanation")))
    or page.name in ("index.md", "does-it-fit.md", "learning-path.md")
    or page.name in ("measure.md", "tune.md", "predict.md", "monitor.md", "setup.md")
]


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda page: page.name)
def test_decimals_in_words_are_those_that_the_page_computes(page):
    """A number that is told in words stands in code or output of the same page, which tests compare."""
    text = page.read_text(encoding="utf-8")
    computed = " ".join(re.findall(r"```.*?```|<!-- numbers: .*?<!-- end -->", text, flags=re.DOTALL))
    words = re.sub(r"```.*?```|<!-- numbers: .*?<!-- end -->|\]\([^)]*\)", "", text, flags=re.DOTALL)
    told = set(re.findall(r"(?<![\w.])\d+\.\d+(?:\.\d+)?(?![\w.]*\d)", words))
    known = set(re.findall(r"\d+\.\d+", computed)) | NOT_RESULTS.get(page.name, set())
    assert sorted(told - known) == []
