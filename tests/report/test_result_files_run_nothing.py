"""Reading a stored result runs no code that it names, holds no more than it may, and says what is wrong once."""

import json
import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from report_results import demo, more, saved, snapshots, swept

from normscope.cli import main
from normscope.report.result_files import sections_of
from normscope.report.sweep_folder import write_phase
from normscope.sweeping import PhaseDiagram
from normscope.sweeping.diagram import lines_file, save_lines

ROOT = Path(__file__).parent.parent.parent
EVIL = "evilmod:build"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    snapshots(folder / "monitor" / "monitor.jsonl", steps=2)
    demo(folder / "demo")
    found = swept(folder / "sweep")
    save_lines({"mine": {0.5: 1.0}}, lines_file(folder / "sweep", found.plan.hash))
    write_phase(found, {}, folder / "sweep")
    saved(folder)
    more(folder)
    shutil.copytree(ROOT / "results" / "reproduce", folder / "reproduce", ignore=lambda _, names: names[8:])
    return folder


@pytest.fixture
def here(base, tmp_path, monkeypatch, capsys):
    """A copy of the results, with a module that leaves a mark; the verbs as functions of their arguments."""
    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    (tmp_path / "evilmod.py").write_text("import pathlib; pathlib.Path('imported').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["normscope", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return call


def _renamed(value, name=""):
    """Every text of a JSON value as the name of a module, but for the words that say what it is."""
    if isinstance(value, dict):
        return {key: _renamed(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, name) for item in value]
    kept = name in ("kind", "axis", "loss", "dtype", "compile", "mode", "hash", "experiment")
    return value if kept or not isinstance(value, str) or value in ("nan", "inf", "-inf") else EVIL


@pytest.mark.parametrize("model", [EVIL, pytest.param("evilmod.py:build", marks=pytest.mark.slow)])
def test_no_kind_of_file_runs_what_it_names(here, model):
    read = 0
    for path in [one for one in Path().rglob("*.json*") if one.is_file()]:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        changed = [json.dumps(_renamed(json.loads(line))).replace(EVIL, model) for line in lines]
        path.write_text("\n".join(changed) + "\n")
    with closing(sqlite3.connect("sweep/sweep.sqlite")) as db, db:
        ((key, text),) = db.execute("select hash, description from plans").fetchall()
        changed = json.loads(text) | {"model": model, "data": model}
        db.execute("update plans set description = ? where hash = ?", (json.dumps(changed), key))
    for path in [*Path().rglob("*.json*"), Path("sweep"), Path("sweep/sweep.sqlite"), Path("demo"), Path("reproduce")]:
        read += here("report", path, "--out", "page.html")[0] == 0
        here("cite", path)
    here("report", "sweep", "--out", "page.html", "--figures", "drawn")
    here("reproduce", "--list", "--out", "reproduce")
    assert read > 8
    assert not Path("imported").exists()
    assert "evilmod" not in sys.modules


def test_a_stored_plan_keeps_its_hash(here):
    (path,) = Path("sweep").glob("phase-*.json")
    stored = json.loads(path.read_text())
    path.write_text(json.dumps(stored | {"plan": stored["plan"] | {"model": EVIL}}))
    assert PhaseDiagram.load(path).plan.hash == stored["hash"]
    assert here("report", path, "--out", "page.html")[0] == 0
    assert not Path("imported").exists()


def test_cite_reads_the_shipped_results(here):
    status, out, err = here("cite", ROOT / "results" / "reproduce")
    assert (status, err) == (0, "")
    assert "kohler2018exponential" in out
    assert "wei2019mean" in out


def test_what_never_ends_is_no_file(here):
    os.mkfifo("pipe")
    for place in ("/dev/zero", "pipe", "/dev/null"):
        for verb in ("report", "cite"):
            status, _, err = here(verb, place)
            assert (status, err) == (2, f"normscope: {place} is not a plain file. Name a file.\n")
    assert here("sweep", "/dev/zero")[0] == 2
    assert here("solve", "pipe", "--target", "y")[0] == 2


def _swapped(content, old, new):
    assert old in content, old
    return content.replace(old, new, 1)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("prediction.json", lambda text: _swapped(text, '"schema": 2', '"a": ' + "[" * 100_000), "more than 64 deep"),
        ("prediction.json", lambda text: _swapped(text, '"schema": 2', '"schema": ' + "9" * 400), "of 400 digits"),
        ("prediction.json", lambda text: _swapped(text, '"mode": "', '"mode_": "'), "lacks 'mode'"),
        ("training.json", lambda text: _swapped(text, '"losses": [', '"losses": ["x", '), "losses[0] must be a number"),
        ("demo/results.json", lambda text: _swapped(text, '"lr": ', '"lr": "[/red]" , "x":'), "lr must be a number"),
        ("monitor/monitor.jsonl", lambda text: _swapped(text, '"factors"', '"other"'), "lacks 'factors'"),
        ("monitor/monitor.jsonl", lambda text: _swapped(text, '"errors"', '"more"'), "snapshot 1 lacks 'errors'"),
        ("spectrum.json", lambda text: _swapped(text, '"n": ', '"n": null, "m": '), "density.n must be an integer"),
        ("solve.json", lambda text: _swapped(text, '"gap": [', '"gap": [' + '"' + "y" * 10**6 + '", '), "must be a"),
        ("reproduce/gradients.json", lambda text: text[: len(text) // 2], "is damaged or no JSON"),
    ],
)  # fmt: skip
def test_values_are_checked_before_they_are_used(here, name, change, said):
    path = Path(name)
    if not path.exists():
        shutil.copy(ROOT / "results" / name, path)
    path.write_text(change(path.read_text()))
    status, _, err = here("report", path.parent if name.startswith("reproduce") else path, "--out", "page.html")
    assert status == 2
    assert said in err
    assert err.count("\n") == 1
    assert len(err) < 700
    assert not Path("page.html").exists()


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("lr", 0.0, "lr must be a number"),
        ("train_loss", None, "is damaged"),
        ("test_loss", "[]", "must hold 1 to 1 numbers"),
        ("test_loss", '["x"]', "must be a number"),
        ("environment", "[1]", "environment must be a table"),
        ("mode", None, "mode must be text"),
        ("seed", -1, "seed must be a number from 0"),
    ],
)
def test_rows_of_a_journal_are_checked(here, column, value, said):
    for path in Path("sweep").glob("phase-*.json"):
        path.unlink()
    with closing(sqlite3.connect("sweep/sweep.sqlite")) as db, db:
        db.execute(f"update rows set {column} = ? where rowid = (select min(rowid) from rows)", (value,))
    status, _, err = here("report", "sweep", "--out", "page.html")
    assert status == 2
    assert said in err
    assert "Move it away and run the sweep again" in err


def test_damaged_lines_are_a_note_and_made_anew_by_the_next_sweep(here):
    for path in Path("sweep").glob("phase-*.json"):
        path.unlink()
    (lines,) = Path("sweep").glob("lines-*.json")
    lines.write_bytes(b"")
    (section,) = sections_of([Path("sweep")])
    assert any("holds no lines that can be read" in note for note in section.notes)
    Path("plan.toml").write_text(PLAN)
    status, out, err = here("sweep", "plan.toml", "--out", "sweep", "--quiet", "--device", "cpu")
    assert (status, err) == (0, "")
    assert json.loads(lines.read_text())["lines"].keys() == {"measured", "predicted"}
    assert "measured: " in out


PLAN = """
model = "MLP"
data = "digits"
loss = "half_mse"
epochs = 1
batch_size = 512
learning_rates = [0.01, 0.1, 1e4]
values = [0.5, 1.0]
seeds = [0]
compile = "never"
[arguments]
d_in = 64
width = 8
depth = 2
norm = "batch"
[data_options]
seed = 0
"""


def test_nothing_is_left_where_the_command_was_refused(here):
    before = sorted(Path().iterdir())
    Path("a file").touch()
    Path("plan.toml").write_text(PLAN)
    for arguments, said in (
        (("report", "demo", "--out", "page.html", "--figures", "a file"), "is a file"),
        (("report", "demo", "--out", "a file/page.html", "--figures", "drawn"), "is a file"),
        (("reproduce", "--gallery", ".", "--out", "reproduce"), "mkdocs.yml is not there"),
        (("sweep", "plan.toml", "--out", "new", "--engine", "rya"), "Did you mean 'ray'"),
        (("sweep", "plan.toml", "--out", "new", "--address", "auto"), "names a Ray cluster"),
        (("sweep", "plan.toml", "--out", "new", "--device", "nasty"), "device must be one of 'cpu'"),
        (("sweep", "plan.toml", "--out", "a file"), "is a file"),
    ):
        status, _, err = here(*arguments)
        assert (status, said in err) == (2, True), err
    Path("a file").unlink()
    Path("plan.toml").unlink()
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("values = { from = 1, to = 2, count = 1000000000 }", "at most 1,000,000; got count=1000000000"),
        ("threads = 5000", "threads is at most 1,024; got 5000"),
        ("batch_size = " + "9" * 400, "batch_size is an integer"),
        ('axis = "' + "a" * 10**6 + '"\nepochs = "x"', "epochs is an integer"),
        ("x = " + "[" * 5000, "is nested too deep"),
    ],
)
def test_plans_are_bounded_and_their_mistakes_are_short(here, line, said):
    Path("plan.toml").write_text(line + "\n" + '\nmodel = "MLP"\ndata = "digits"\nlearning_rates = [0.1]\n')
    status, _, err = here("sweep", "plan.toml")
    assert status == 2
    assert said in err
    assert len(err) < 1500


def test_what_the_user_named_is_printed_as_it_is(here):
    Path("[bold]o").mkdir()
    shutil.copytree("sweep", "[bold]o/[red]")
    Path("plan.toml").write_text(PLAN)
    status, out, _ = here("sweep", "plan.toml", "--out", "[bold]o/[red]", "--no-lines", "--quiet", "--device", "cpu")
    assert status == 0
    assert "Written: [bold]o/[red]/phase-" in out
