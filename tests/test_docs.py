"""Documentation that runs: code blocks, commands with their output."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
SLOW = {"levels-of-evidence.md", "learning-rate.md", "lightning.md"}


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


def test_how_far_eta_star_is_off_is_what_is_stored():
    text = " ".join((ROOT / "docs/explanation/eta-star.md").read_text(encoding="utf-8").split())
    near, far = (
        {one["name"]: one for one in json.loads((ROOT / f"results/{name}.json").read_text())["agreement"]}
        for name in ("phase-mnist-mlp", "phase-mnist-mlp-cross-entropy")
    )
    measured = near["measured"]
    assert (
        f"{measured['median']:+.2f} decades (median over {measured['n']} gammas), at worst {measured['worst']:.2f}"
        in text
    )
    assert f"up to {far['measured']['worst']:.2f} decades beyond" in text
    below = sorted(-distance for distance in measured["best"].values())
    assert f"lay {below[0]:.1f} to {below[-1]:.1f} decades below" in text
