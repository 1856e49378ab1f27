"""Verdicts from stored curves: all are computed, a changed curve flips one, and the pages say what they give."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from normscope.papers import VERDICTS, Entry, Experiment, Part, Statement, Store, all_entries, judge
from normscope.papers.curve_statistics import top
from normscope.papers.experiment import Run
from normscope.papers.paper_pages import PAPERS, paper_of
from normscope.report.drawing import draw
from normscope.report.gallery import EXCEPTIONS, FOLDER, IMAGES, index, pages, tables, write_gallery
from normscope.report.sections.claims import claim_charts, summary

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results/reproduce"


@pytest.fixture(scope="module")
def judged():
    return [one for entry in all_entries().values() for one in judge(entry, Store(STORED))]


@pytest.fixture(scope="module")
def shown():
    return tables(all_entries().values(), Store(STORED))


@pytest.fixture(scope="module")
def drawn():
    return claim_charts(all_entries().values(), Store(STORED))


def test_every_verdict_is_computed_and_says_what_it_saw(judged):
    assert len(judged) > 80
    assert len({one.name for one in judged}) == len(judged)
    for one in judged:
        assert one.verdict in VERDICTS
        assert bool(one.parts) == (one.verdict != "not yet run") == (one.n >= one.statement.n)
        assert one.statement.n >= 3
        assert one.statement.words.endswith(".")
        assert one.statement.rule.endswith(".")


def test_every_figure_is_redrawn(drawn, judged):
    with_numbers = {one.entry.name for one in judged if one.parts}
    assert with_numbers <= set(drawn)
    for name, chart in drawn.items():
        for ax in draw(chart).axes:
            if ax.get_visible() and ax.get_label() != "<colorbar>":
                assert ax.get_xlabel(), name
                assert ax.get_ylabel(), name
                assert ax.lines, name


def test_the_pages_show_what_the_curves_give(judged, drawn, shown):
    """After new runs: normscope reproduce --check --gallery ."""
    for name, text in pages(all_entries().values(), judged, drawn, shown).items():
        assert (ROOT / name).read_text(encoding="utf-8") == text
    for name in drawn:
        assert (ROOT / IMAGES / f"{name}.png").is_file()


def test_every_entry_is_on_the_page_of_its_paper_and_on_no_other(judged, drawn, shown):
    written = pages(all_entries().values(), judged, drawn, shown)
    for entry in all_entries().values():
        places = [paper.file for paper in PAPERS if f"## {entry.name}: " in written[f"{FOLDER}/{paper.file}.md"]]
        assert places == [paper_of(entry).file]
        assert (places == ["wei-2019"]) == entry.name.startswith("mf-")
        assert (places == ["santurkar-2018"]) == entry.name.startswith(("fig-", "vgg-", "theorems"))


def test_the_page_for_sceptics_is_one_page_and_names_every_exception(judged, drawn, shown):
    text = pages(all_entries().values(), judged, drawn, shown)[EXCEPTIONS]
    assert len(text.splitlines()) <= 80
    table = text.split("| --- | --- | --- | --- |", 1)[1]
    cells = [cell.strip() for row in table.splitlines() for cell in row.strip("|").split("|")[1:]]
    named = sum(len(cell.split(", ")) for cell in cells if cell)
    differing = [one for one in judged if one.verdict not in ("reproduced", "not yet run")]
    assert named == len(differing) > 0
    assert all(one.statement.key in table for one in differing)


def test_the_gallery_is_written_and_nothing_else_is_touched(judged, drawn, shown, tmp_path):
    with pytest.raises(ValueError, match="mkdocs.yml is not there"):
        write_gallery(tmp_path, [], [], {}, {})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mkdocs.yml").touch()
    few = {name: chart for name, chart in drawn.items() if name == "fig-9"}
    entries = list(all_entries().values())
    written = write_gallery(tmp_path, entries, judged, few, shown)
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {tmp_path / "mkdocs.yml", *written}
    assert [path.name for path in written if path.suffix == ".png"] == ["fig-9.png"]
    for name, text in pages(entries, judged, few, shown).items():
        assert (tmp_path / name).read_text(encoding="utf-8") == text


def _tampered(tmp_path, experiment, change):
    """The stored results with one experiment's curves changed."""
    folder = tmp_path / "results"
    shutil.copytree(ROOT / "results", folder, ignore=shutil.ignore_patterns("figures", "phase-*"))
    path = folder / "reproduce" / f"{experiment}.json"
    content = json.loads(path.read_text())
    for run in content["runs"]:
        change(run["curves"], content["plans"][run["plan"]])
    path.write_text(json.dumps(content))
    return Store(folder / "reproduce")


def _verdict(name, store):
    entry, key = name.split("/")
    return next(one.verdict for one in judge(all_entries()[entry], store) if one.statement.key == key)


def _one_error(curves, plan):
    curves["Theorem 4.1, corrected"]["error"][0] = 1e-3


def _slower(curves, plan):
    curves["256"] = [0.9 * log for log in curves["256"]]


def _worse(curves, plan):
    if plan["norm"] == "batch":
        curves["by_rate"] = [0.5 * share for share in curves["by_rate"]]


def _smaller(curves, plan):
    if plan["norm"] == "batch":
        curves["initial"]["change"][-1] = curves["initial"]["change"][0]


def _off_the_bound(curves, plan):
    if plan["problem"] == "least squares":
        curves["gap"][0][-1] = 2 * curves["bound"][0][-1]


def _one_side(curves, plan):
    curves["Theorem 4.1, corrected"]["left"][0] *= 1.01


def _above(curves, plan):
    sides = curves["Theorem 4.2, part 1, printed"]
    sides["left"][0] = sides["right"][0] + abs(sides["right"][0])


def _no_error(curves, plan):
    curves["Theorem 4.1, corrected"]["error"][-1] = "nan"


def _no_gap(curves, plan):
    if plan["problem"] == "halfspaces":
        curves["sigmoid, corrected"][-1] = "nan"


def _no_difference(curves, plan):
    curves["error"]["gamma"][-1] = "nan"


@pytest.mark.parametrize(
    ("name", "experiment", "change", "before", "after"),
    [
        ("theorems/gradient-bound", "theorems", _one_side, "reproduced", "the statement is wrong"),
        ("theorems/curvature", "theorems", _above, "reproduced", "the statement is wrong"),
        ("theorems/gradient-bound", "theorems", _no_error, "reproduced", "the statement is wrong"),
        ("convergence/halfspaces", "convergence", _no_gap, "reproduced", "the statement is wrong"),
        ("gradients/formulas", "gradients", _no_difference, "reproduced", "the statement is wrong"),
        ("theorems/gradient-bound", "theorems", _one_error, "reproduced", "the statement is wrong"),
        ("explosion/rate", "explosion", _slower, "reproduced", "reproduced in part"),
        ("robustness/learning-rates", "robustness", _worse, "reproduced", "not reproduced"),
        ("amplification/reduced", "amplification", _smaller, "not reproduced", "reproduced in part"),
        ("convergence/least-squares", "convergence", _off_the_bound, "reproduced", "the statement is wrong"),
    ],
)
def test_a_changed_curve_flips_the_verdict(name, experiment, change, before, after, tmp_path):
    assert _verdict(name, Store(STORED)) == before
    assert _verdict(name, _tampered(tmp_path, experiment, change)) == after


def test_a_changed_landscape_flips_the_verdict(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    stored = json.loads((ROOT / "results/landscape-dln.json").read_text())
    for run in stored["runs"]:
        if run["norm"] == "batch":
            run["snapshots"]["beta"][200] = 1e9
    (folder / "landscape-dln.json").write_text(json.dumps(stored))
    assert _verdict("fig-9/beta", Store(STORED)) == "reproduced"
    assert _verdict("fig-9/beta", Store(folder / "reproduce")) == "reproduced in part"


def _entry(parts, *, exact=False, n=3, scales=("paper", "small")):
    experiment = Experiment("made", "", {"paper": {}, "small": {}}, {"cell": {}}, lambda s, seed, place: {}, {})
    statement = Statement("key", "Words.", "Rule.", lambda runs: parts, n=n, exact=exact, scales=scales)
    return Entry("made", "", "", "", {experiment: ("cell",)}, (statement,), lambda runs: []), experiment


@pytest.mark.parametrize(
    ("holds", "exact", "verdict"),
    [
        ([True, True], False, "reproduced"),
        ([True, False], False, "reproduced in part"),
        ([False], False, "not reproduced"),
        ([True, False], True, "the statement is wrong"),
    ],
)
def test_verdicts_follow_from_the_parts(holds, exact, verdict, tmp_path):
    entry, experiment = _entry([Part("", one) for one in holds], exact=exact)
    store = Store(tmp_path)
    for seed in range(3):
        assert judge(entry, store)[0].verdict == "not yet run"
        assert judge(entry, store)[0].n == seed
        store.add(experiment, "paper", Run("cell", seed, {}, 0.0, {}))
    assert judge(entry, store)[0].verdict == verdict


def test_a_cell_with_more_seeds_than_another_has_no_more_say(tmp_path):
    """The largest over five seeds of one network beside the largest over three of the other would be no comparison."""
    seen = []
    experiment = Experiment("made", "", {"paper": {}, "small": {}}, {"a": {}, "b": {}}, lambda *_: {}, {})

    def rule(runs):
        seen.append({cell: sorted(runs.of(cell)) for cell in ("a", "b")})
        return [Part("", True)]

    statement = Statement("key", "Words.", "Rule.", rule)
    entry = Entry("made", "", "", "", {experiment: ("a", "b")}, (statement,), lambda runs: [])
    store = Store(tmp_path)
    for cell, seeds in (("a", (0, 1, 2, 3, 4)), ("b", (1, 2, 4))):
        for seed in seeds:
            store.add(experiment, "paper", Run(cell, seed, {}, 0.0, {}))
    assert judge(entry, store)[0].n == 3
    assert seen == [{"a": [1, 2, 4], "b": [1, 2, 4]}]


def test_what_is_no_number_is_beyond_every_bound():
    assert top([1.0, float("nan"), 2.0]) == float("inf")
    assert top([1.0, 2.0]) == 2.0


def test_small_scale_is_said_wherever_a_verdict_stands(tmp_path):
    entry, experiment = _entry([Part("", True)], n=1)
    entry = replace(entry, source="ours")
    store = Store(tmp_path)

    def said():
        return index([entry], judge(entry, store)).split("## Verdicts by paper")[1], summary(judge(entry, store))

    assert "small" not in "".join(said())
    store.add(experiment, "small", Run("cell", 0, {}, 0.0, {}))
    rows, sentence = said()
    assert "key (small scale)" in rows
    assert "1 of these verdicts are at small scale" in sentence
    store.add(experiment, "paper", Run("cell", 0, {}, 0.0, {}))
    assert "small" not in "".join(said())


def test_every_difference_has_a_meaning(judged):
    """Nothing that came out otherwise stands without what we think of it."""
    for one in judged:
        if one.verdict not in ("reproduced", "not yet run"):
            assert one.statement.means, one.name


def test_the_papers_scale_is_judged_where_it_is_there(tmp_path):
    entry, experiment = _entry([Part("", True)], n=1)
    only_paper, _ = _entry([Part("", True)], n=1, scales=("paper",))
    store = Store(tmp_path)
    store.add(experiment, "small", Run("cell", 0, {}, 0.0, {}))
    assert judge(entry, store)[0].scale == "small"
    assert judge(only_paper, store)[0].verdict == "not yet run"
    store.add(experiment, "paper", Run("cell", 0, {}, 0.0, {}))
    assert judge(entry, store)[0].scale == "paper"


def test_rules_name_no_run_that_is_not_there():
    """Every cell that an entry or a statement needs is a cell of its experiment."""
    for entry in all_entries().values():
        for experiment, cell in entry.cells():
            assert cell in experiment.cells
            assert {("paper", "cpu"), ("small", "cpu")} <= set(experiment.seconds)
        for statement in entry.statements:
            assert entry.cells(statement), f"{entry.name}/{statement.key}"
            for name in statement.cells or ():
                assert any(name in (cell, f"{experiment.name}/{cell}") for experiment, cell in entry.cells(statement))


def test_an_entry_of_a_paper_without_a_page_says_how_to_add_one():
    entry = replace(all_entries()["fig-10"], source="A")
    with pytest.raises(ValueError, match="Add a Paper to PAPERS"):
        paper_of(entry)
