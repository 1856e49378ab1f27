"""The command line as a person meets it: in a process of its own."""

import os
import subprocess
import sys

import pytest

import normscope.cli


def run(*arguments, cwd, **environment):
    command = [sys.executable, "-m", "normscope", *arguments]
    env = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "NO_COLOR": "1"} | environment
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def test_version(tmp_path):
    found = run("--version", cwd=tmp_path)
    assert (found.returncode, found.stdout) == (0, f"normscope {normscope.__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["bounds", "--help"],
        ["cite", "--help"],
        ["data", "--help"],
        ["data", "fetch", "--help"],
        ["demo", "--help"],
        ["diagnose", "--help"],
        ["doctor", "--help"],
        ["measure", "--help"],
        ["monitor", "--help"],
        ["predict", "--help"],
        ["report", "--help"],
        ["reproduce", "--help"],
        ["solve", "--help"],
        ["sweep", "--help"],
    ],
)
def test_help_does_not_import_torch(arguments):
    code = (
        "import sys; from normscope.cli import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'sklearn', 'pandas'} & set(sys.modules), 'a heavy library was imported'"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr
    said = found.stdout.split("\n", 4)
    assert "Usage" in found.stdout
    assert any("Example: normscope" in line for line in said), "the example does not come first"


def test_users_mistakes_are_one_message_and_status_2(tmp_path):
    found = run("data", "fetch", "mnits", cwd=tmp_path)
    assert found.returncode == 2
    assert "mnist" in found.stderr
    assert "Traceback" not in found.stderr
    blocked = tmp_path / "file"
    blocked.write_text("")
    found = run("demo", "--out", str(blocked / "folder"), cwd=tmp_path)
    assert found.returncode == 2
    assert "Traceback" not in found.stderr
    assert str(blocked) in found.stderr


@pytest.mark.slow
def test_demo_writes_its_folder_and_prints_the_table(tmp_path):
    found = run("demo", "--seed", "3", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    written = sorted(path.name for path in (tmp_path / "normscope-demo").iterdir())
    assert written == ["learning-rates.png", "results.json", "summary.md", "watched.png"]
    assert "What the demo found" in found.stdout
    assert "bit for bit" in found.stdout
    assert "normscope report normscope-demo" in found.stderr
    assert "…" not in found.stdout, "the table does not fit 80 columns"


def test_ctrl_c_is_status_1_and_says_how_to_go_on(monkeypatch, capsys):
    def interrupted(uses):
        raise KeyboardInterrupt

    monkeypatch.setattr("normscope.sources.sources_for", interrupted)
    monkeypatch.setattr(sys, "argv", ["normscope", "cite"])
    with pytest.raises(SystemExit) as ended:
        normscope.cli.main()
    assert ended.value.code == 1
    assert "interrupted. The same command starts from the beginning." in capsys.readouterr().err
