"""What a report says of files: each kind is known by what it holds, and what is none is named in one message."""

import contextlib
import json
import shutil
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from report_results import ALERT, demo, more, saved, snapshots, swept

from normscope.cli import main
from normscope.papers import Store, all_entries, judge
from normscope.report.chart import Axis, Chart, Line, Panel
from normscope.report.document import Said, Section
from normscope.report.drawing import draw, write_figures
from normscope.report.page import island, page
from normscope.report.page_file import write_report
from normscope.report.result_files import sections_of
from normscope.report.sections import predictions_and_measurements
from normscope.report.sections.monitor_runs import Course, monitor_section
from normscope.report.sections.phase import phase_section
from normscope.report.sections.predictions_and_measurements import prediction_section
from normscope.results.invocation import command
from normscope.sweeping.diagram import lines_file, save_lines

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    snapshots(folder / "a" / "monitor.jsonl")
    snapshots(folder / "b" / "monitor.jsonl")
    demo(folder / "demo")
    swept(folder / "sweep")
    saved(folder)
    return folder


def report(monkeypatch, capsys, *arguments):
    """Exit status, stdout and stderr of the verb, in this process."""
    monkeypatch.setattr(sys, "argv", ["normscope", "report", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_runs_stand_side_by_side_with_the_records_numbers(folder):
    (section,) = sections_of([folder / "a", folder / "b"])
    bands = section.charts[0]
    assert [panel.title for panel in bands.panels] == ["a", "b"]
    rows = [json.loads(line) for line in (folder / "a" / "monitor.jsonl").read_text().splitlines()]
    held = [row["results"]["landscape"] for row in rows if row["kind"] == "snapshot" and "landscape" in row["results"]]
    band = bands.panels[0].bands[0]
    assert list(band.low) == [min(found["losses"]) for found in held]
    assert list(band.high) == [max(found["losses"]) for found in held]
    titles = [chart.title.partition(",")[0] for chart in section.charts]
    assert titles[:4] == [
        "Loss along the gradient",
        "Change of the gradient",
        "Effective beta-smoothness",
        "Critical step",
    ]
    assert {"Covariate shift by layer", "Activations over training"} <= set(titles)
    beta = section.charts[2].panels[0].lines
    assert set(beta[1].y) == {20.0}, "2/lr at lr = 0.1"
    assert section.settings["a"]["model"] == "Sequential"
    assert section.command == "python"


@pytest.mark.parametrize(
    ("name", "first", "chart"),
    [
        ("demo", "Predicted before training: eta* = ", "Where training ends, in units of eta*"),
        ("sweep", "Use a learning rate of", "Phase diagram"),
        ("prediction.json", "Use a learning rate below eta*", "Order parameters along depth"),
        ("measurement.json", "Use a learning rate below eta*", "Curvature by layer"),
        ("spectrum.json", "Eigenvalues lie between", "Spectral density"),
        ("solve.json", "gdnp comes within 1e-06", "Convergence, y"),
    ],
)
def test_every_kind_has_a_verdict_first_and_a_figure(folder, tmp_path, name, first, chart):
    (section,) = sections_of([folder / name])
    assert section.verdicts[0].text.startswith(first)
    assert section.charts[0].title == chart
    text = write_report([section], tmp_path / "new" / "page.html").read_text()
    places = [
        text.index(part) for part in ("What this means for you", first, 'data-chart="0"', "How it was made", "torch")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("name", ["landscape-dln.json", "landscape-vgg16-cifar10.json", "phase-mnist-mlp.json"])
def test_stored_results_fit_the_page(name, tmp_path):
    path = write_report(sections_of([ROOT / "results" / name]), tmp_path / "page.html")
    assert 1e5 < path.stat().st_size < 6e6


def test_landscapes_of_schema_1_read_as_those_of_schema_2(tmp_path):
    new = ROOT / "results" / "landscape-dln.json"
    text = new.read_text().replace('"snapshots": ', '"looks": ').replace("seconds_measuring", "seconds_looking")
    old = tmp_path / new.name
    old.write_text(text.replace('"landscapes", "schema": 2', '"landscapes", "schema": 1'))
    assert '"schema": 1' in old.read_text()[:60]
    assert sections_of([old]) == sections_of([new])


def test_results_write_and_show_their_own_page(folder, tmp_path):
    monitor = snapshots(tmp_path / "c.jsonl", steps=2)
    assert "What this means for you" in monitor.report(tmp_path / "c.html").read_text()
    framed = monitor._repr_html_()
    assert framed.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert 'sandbox="allow-scripts' in framed
    found = swept(folder / "sweep")
    assert "eta*, mine" in found.report(tmp_path / "d.html", lines={"mine": {0.5: 1.0, 1.0: 0.5}}).read_text()


def test_a_sweep_is_known_by_the_hash_it_ran_under(folder, tmp_path):
    shutil.copytree(folder / "sweep", tmp_path / "sweep")
    journal = next((tmp_path / "sweep").glob("*.sqlite"))
    with contextlib.closing(sqlite3.connect(journal)) as db, db:
        for table, column in (("plans", "hash"), ("starts", "plan"), ("rows", "plan")):
            db.execute(f"update {table} set {column} = 'older'")
    (section,) = sections_of([tmp_path / "sweep"])
    assert section.settings["plan's hash"] == "older"
    assert [len(row) for row in section.charts[0].panels[0].heat.values] == [3, 3]


def test_a_followed_sweep_has_the_lines_that_were_found_before_it(folder, tmp_path):
    shutil.copytree(folder / "sweep", tmp_path / "sweep")
    (section,) = sections_of([tmp_path / "sweep"], live=True)
    assert not any("mine" in line.name for line in section.charts[0].panels[0].lines)
    save_lines({"mine": {0.5: 1.0, 1.0: 0.5}}, lines_file(tmp_path / "sweep", section.settings["plan's hash"]))
    (section,) = sections_of([tmp_path / "sweep"], live=True)
    (line,) = (line for line in section.charts[0].panels[0].lines if line.name == "eta*, mine")
    assert sorted(zip(line.x, line.y, strict=True)) == [(0.5, 1.0), (1.0, 0.5)]


def test_claims_stand_row_by_row_with_their_figures(tmp_path):
    """The folder of `normscope reproduce`: every statement that reads what is stored, and its verdict as computed."""
    (section,) = sections_of([ROOT / "results/reproduce"])
    (table,) = section.tables
    judged = {
        one.name: one for entry in all_entries().values() for one in judge(entry, Store(ROOT / "results/reproduce"))
    }
    for name, _, words, came_out, verdict, n, _ in table.rows:
        one = judged[name]
        assert (words, came_out, verdict, n) == (one.statement.words, one.came_out, one.verdict, one.n)
    assert {name for name, one in judged.items() if one.parts} <= {row[0] for row in table.rows}
    assert section.verdicts[0].text.startswith(f"{len(table.rows)} statements: ")
    assert all(said.good is not True for said in section.verdicts)
    assert len(section.charts) >= 10
    assert 1e5 < write_report([section], tmp_path / "claims.html").stat().st_size < 6e6


@pytest.mark.parametrize(
    "name", ["demo", "sweep", "prediction.json", "measurement.json", "spectrum.json", "solve.json"]
)
def test_every_kind_of_figure_is_drawn_for_papers(folder, tmp_path, name):
    sections = sections_of([folder / name])
    written = write_figures(sections, tmp_path / "figures")
    charts = [chart for section in sections for chart in section.charts]
    assert len(written) == 3 * len(charts)
    starts = {".pdf": b"%PDF", ".png": b"\x89PNG", ".svg": b"<?xml"}
    assert all(path.read_bytes().startswith(starts[path.suffix]) for path in written)
    for chart in charts:
        axes = [ax for ax in draw(chart).axes if ax.get_xlabel() or ax.get_ylabel()]
        for ax, panel in zip(axes, chart.panels, strict=False):
            drawn = {line.get_label(): line for line in ax.get_lines()}
            for line in panel.lines:
                assert list(drawn[line.name].get_ydata()) == pytest.approx(list(line.y), nan_ok=True)


def test_figures_of_labels_that_look_like_formulas(tmp_path):
    lines = (Line("cost in $ and $^", [0.0, 1.0], [1.0, 2.0]),)
    chart = Chart("a/b $x$ ../up", "", (Panel("$", Axis("$"), Axis("y", log=True), lines),))
    written = write_figures([Section("t", (), (chart,))], tmp_path)
    assert {path.parent for path in written} == {tmp_path}
    assert written[0].name == "01-a-b-x-up.pdf"


def test_a_sweep_that_is_followed_is_read_from_its_journal(folder, tmp_path):
    shutil.copytree(folder / "sweep", tmp_path / "sweep")
    (tmp_path / "sweep" / "phase-0.json").write_text("{}")
    (section,) = sections_of([tmp_path / "sweep"], live=True)
    assert section.verdicts[0].text.startswith("Use a learning rate of")


def test_advice_is_given_where_the_grid_shows_it(tmp_path):
    """A rate at the end of those tried is the best of nothing."""
    found = swept(tmp_path)

    def said(*rates):
        return phase_section(
            "", replace(found, outcomes=[o for o in found.outcomes if o.cell.lr in rates]), {}
        ).verdicts

    assert said(0.01, 0.1, 1e4)[0].good
    for rates, end, other in (((0.01, 0.1), "largest", "larger"), ((0.1, 1e4), "smallest", "smaller")):
        advice = said(*rates)[1]
        assert advice.good is None
        assert f"is at 0.1, the {end} that was tried. Add {other} ones." in advice.text


def test_a_prediction_out_of_reach_says_how_far(folder):
    stored = json.loads((folder / "prediction.json").read_text())
    eta, (low, high) = stored["eta_star"], stored["calibrated_range"]
    assert stored["warnings"]
    assert f"between {eta / high:.2g} and {eta / low:.2g}" in prediction_section("", stored).verdicts[0].text
    entropy = stored | {"loss": "cross_entropy", "loss_kind": "cross_entropy"}
    assert prediction_section("", entropy).verdicts[0].text.startswith("Look for a learning rate around eta* = ")
    earlier = {name: value for name, value in stored.items() if name != "calibrated_range"}
    assert prediction_section("", earlier).verdicts[0].text.endswith("as said below: measure to be sure.")


def test_labels_are_text_and_nothing_is_fetched():
    label, looked = f"</script>{ALERT}", {"step": [0.0], "critical_step": [2.0], ALERT: [1.0]}
    said = (Said(False, ALERT, ALERT, ALERT),)
    course = Course(label, looked, {}, {}, said, (ALERT,), {ALERT: ALERT}, {ALERT: ALERT}, ALERT)
    text = page([monitor_section(f"{ALERT}<b>", [course])] * 2, title=ALERT, command=ALERT)
    assert "<script>alert" not in text
    assert text.count("<script") == 2
    assert text.count("</script>") == 2
    assert island(["&<>"]) == '["\\u0026\\u003c\\u003e"]'
    assert "unsafe" not in text
    assert "connect-src" not in text
    for way in ("http://", "https://", "src=", "@import", "url("):
        assert way not in text.replace("http://www.w3.org/2000/svg", "").replace("url(#", ""), way


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.jsonl", b"", "is empty"),
        ("empty.json", b" \n", "is empty"),
        ("half.json", b'{"kind": "prediction", "schema": 1, "lay', "is half-written"),
        ("half.jsonl", b'{"kind": "run", "sch', "is half-written"),
        ("begun.jsonl", b'{"kind": "run", "schema": 1}\n', "holds no snapshot yet"),
        ("notes.txt", b"lr 0.1 was fine", "is a foreign file: no JSON"),
        ("other.json", b'{"a": 1}', "is a foreign file: JSON that normscope did not write"),
        ("list.json", b"[1, 2]", "is a foreign file"),
        ("picture.png", b"\x89PNG\r\n\x1a\n\xff\xfe", "is a foreign file"),
        ("demo.json", b'{"kind": "demo", "schema": 3, "cases": []}', "has schema 3"),
        ("old.json", b'{"kind": "demo", "schema": 1, "runs": []}', "lacks"),
        ("torn.json", b'{"kind": "prediction", "schema": 1}', "lacks some of it"),
        ("layers.json", b'{"kind": "bounds", "schema": 1, "layers": {}}', "lacks some of it"),
        ("words.json", b'{"kind": "training", "schema": 1, "losses": ["x"]}', "lacks some of it"),
        ("demos.json", b'[{"task": "digits", "training": {}}]', "was written by an earlier normscope"),
        ("looks.json", b'[{"looks": [], "windows": []}]', "was written by an earlier normscope"),
        ("solved.json", b'{"schema": 1, "methods": {}, "promise": 1}', "was written by an earlier normscope"),
        ("bounded.json", b'{"schema": 1, "layers": {}}', "was written by an earlier normscope"),
        ("newer.json", b'{"kind": "prediction", "schema": 9}', "has schema 9"),
        ("other.jsonl", b'{"step": 1}\n', "is not a file of a Monitor"),
        ("other.sqlite", b"SQLite format 3\0" + bytes(100), "journal"),
    ],
)
def test_what_is_no_result_is_one_message_and_status_2(name, content, said, tmp_path, monkeypatch, capsys):
    path = tmp_path / name
    path.write_bytes(content)
    status, out, err = report(monkeypatch, capsys, path, "--out", tmp_path / "page.html")
    assert (status, out) == (2, "")
    assert said in err
    assert str(path) in err
    assert "Traceback" not in err
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("column", ["grad_norm", "step"])
def test_a_column_that_charts_need_and_the_file_lacks_is_one_message(column, tmp_path, monkeypatch, capsys):
    stored = json.loads((ROOT / "results" / "landscape-dln.json").read_text())
    del stored["runs"][0]["snapshots"][column]
    path = tmp_path / "landscape.json"
    path.write_text(json.dumps(stored))
    status, out, err = report(monkeypatch, capsys, path, "--out", tmp_path / "page.html")
    assert (status, out) == (2, "")
    assert "lacks some of it" in err
    assert str(path) in err


@pytest.mark.parametrize("column", ["loss_min", "step"])
def test_columns_of_unequal_length_are_one_message(column, tmp_path, monkeypatch, capsys):
    stored = json.loads((ROOT / "results" / "landscape-dln.json").read_text())
    stored["runs"][0]["snapshots"][column].pop()
    path = tmp_path / "landscape.json"
    path.write_text(json.dumps(stored))
    status, out, err = report(monkeypatch, capsys, path, "--out", tmp_path / "page.html")
    assert (status, out) == (2, "")
    assert "unequal lengths" in err
    assert str(path) in err


def test_folders_and_places_are_checked(folder, tmp_path, monkeypatch, capsys):
    assert "There is no file or folder" in report(monkeypatch, capsys, tmp_path / "nowhere")[2]
    assert "holds nothing to report" in report(monkeypatch, capsys, tmp_path)[2]
    assert "is a folder" in report(monkeypatch, capsys, folder / "a", "--out", tmp_path)[2]


def test_a_line_cut_short_is_left_out_and_said(folder, tmp_path):
    lines = (folder / "a" / "monitor.jsonl").read_bytes()
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(lines[:-40])
    (section,) = sections_of([torn])
    assert any("line 7 was cut short" in note for note in section.notes)
    assert len(section.charts[3].panels[0].lines[0].x) == 5


def test_trainings_tunings_bounds_and_mean_modes_have_pages_of_their_own(tmp_path):
    layer, mode, run, tuned, found = (sections_of([path])[0] for path in more(tmp_path))
    assert found.verdicts[0].text.startswith("No findings by") == (not found.tables)
    assert layer.verdicts[0].text == "Every corrected statement holds on 4 units of 1 layer."
    assert "Theorem 4.1" in layer.verdicts[1].text
    assert {line.name for line in layer.charts[0].panels[0].lines} == {"both", "printed", "corrected"}
    assert "of the top eigenvector is constant over samples" in mode.verdicts[0].text
    assert [chart.title for chart in run.charts] == ["Loss over training", "Evaluated: test"]
    assert run.verdicts[0].good
    assert run.charts[0].panels[0].y.high is None
    assert tuned.verdicts[0].text.startswith("Train with a learning rate of")
    assert "gradient passes" in tuned.verdicts[1].text
    assert [len(line.y) for line in tuned.charts[0].panels[0].lines] == [row[1] for row in tuned.tables[0].rows]
    stored = json.loads((tmp_path / "training.json").read_text())
    stored |= {"losses": [1.0, 50.0, "inf"], "diverged_at": 2}
    (tmp_path / "training.json").write_text(json.dumps(stored))
    (run,) = sections_of([tmp_path / "training.json"])
    assert run.verdicts[0].text.startswith("Training diverged at step 2")
    assert run.charts[0].panels[0].y.high == 10.0


def test_the_answer_comes_first_then_the_warnings():
    good, bad, answer = Said(True, "good"), Said(False, "bad"), Said(None, "answer")
    assert Section("", (good, bad)).in_order() == [bad, good]
    assert Section("", (answer, good, bad)).in_order() == [answer, bad, good]
    assert Section("", (bad, answer)).in_order() == [bad, answer]


def test_what_is_cut_short_empty_or_unfinished_is_said(folder, tmp_path):
    lines = (folder / "a" / "monitor.jsonl").read_bytes().splitlines(keepends=True)
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(lines[0] + lines[1][:40])
    with pytest.raises(ValueError, match="half-written: its only snapshot was cut short"):
        sections_of([torn])
    snapshot = json.loads(lines[1]) | {"results": {}, "verdicts": [], "errors": {"snapshot": "ValueError: why"}}
    torn.write_bytes(lines[0] + json.dumps(snapshot).encode() + b"\n")
    assert sections_of([torn])[0].verdicts[0].text == "Nothing was measured: snapshot: ValueError: why"
    shutil.copytree(folder / "sweep", tmp_path / "sweep")
    with contextlib.closing(sqlite3.connect(tmp_path / "sweep/sweep.sqlite")) as db, db:
        db.execute("delete from rows where rowid not in (select min(rowid) from rows)")
    (section,) = sections_of([tmp_path / "sweep"])
    assert section.verdicts[0].text.startswith("1 of 6 trainings are done")
    assert not any("outside the grid" in said.text for said in section.verdicts)


def test_the_verb_prints_verdicts_or_json(folder, tmp_path, monkeypatch, capsys):
    status, out, err = report(monkeypatch, capsys, folder / "demo", "--out", tmp_path / "page.html")
    assert (status, err) == (0, "")
    assert out.startswith("- [ok] Predicted before training")
    assert out.endswith(f"Written: {tmp_path / 'page.html'}\n")
    status, out, err = report(monkeypatch, capsys, folder / "demo", "--json", "--out", tmp_path / "page.html")
    found = json.loads(out)
    assert (status, found["schema"], found["sections"][0]["verdicts"][0]["good"]) == (0, 1, True)
    assert "normscope report" in (tmp_path / "page.html").read_text()
    page, drawn = tmp_path / "page.html", tmp_path / "drawn"
    status, out, err = report(monkeypatch, capsys, folder / "demo", "--out", page, "--figures", drawn)
    assert (status, err) == (0, "")
    assert out.endswith(f"Written: {len(list(drawn.iterdir()))} files of figures in {drawn}\n")
    assert "is a file" in report(monkeypatch, capsys, folder / "demo", "--figures", page, "--out", page)[2]
    assert "give one of them" in report(monkeypatch, capsys, folder / "demo", "--figures", drawn, "--serve")[2]


@pytest.mark.parametrize(
    ("given", "typed"),
    [
        (["/bin/normscope", "report", "a b"], "normscope report 'a b'"),
        (["/lib/normscope/__main__.py", "demo"], "normscope demo"),
        (["/home/me/train.py", "--lr", "1"], "python train.py --lr 1"),
        (["/lib/ipykernel_launcher.py", "-f", "k.json"], "python ipykernel_launcher.py -f k.json"),
        (["/lib/pytest/__main__.py", "-q"], "python"),
        ([""], "python"),
    ],
)
def test_the_command_is_as_it_would_be_typed(given, typed, monkeypatch):
    monkeypatch.setattr(sys, "argv", given)
    assert command() == typed


def test_an_error_in_a_section_is_told_with_its_line(folder, monkeypatch):
    def broken(title, stored):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(predictions_and_measurements, "prediction_section", broken)
    with pytest.raises(ValueError, match=r"the drawing has an error \(test_result_files\.py, line \d+\)"):
        sections_of([folder / "prediction.json"])
