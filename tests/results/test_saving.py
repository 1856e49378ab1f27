"""Files are written whole or not at all, and a full disk leaves what was there."""

import errno
import os
import subprocess
import sys

import pytest

import normscope as ns
from normscope.results import write_json
from normscope.results.saving import beside, check_folder, save_text

FULL = OSError(errno.ENOSPC, "No space left on device")


def _full(*_):
    raise FULL


@pytest.mark.parametrize("fails", ["replace", "fsync"])
def test_a_full_disk_leaves_the_old_file_alone(fails, tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    save_text(path, "old")
    monkeypatch.setattr(os, fails, _full)
    with pytest.raises(OSError, match="No space left"):
        save_text(path, "new")
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    assert path.read_text() == "old"


def test_results_figures_and_pages_survive_a_disk_with_no_room(tmp_path):
    """In a process that may write files of 4 kB at most: each is the old one, and nothing lies beside it."""
    code = """if True:
        import resource, signal
        from pathlib import Path
        from matplotlib.figure import Figure
        from normscope.report.document import Section
        from normscope.report.page_file import write_report
        from normscope.results import write_json
        from normscope.results.saving import save_figure
        figure = Figure()
        figure.subplots(3, 3)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        for name, write in {
            "a.json": lambda path: write_json(path, {"a": "x" * 9000}),
            "a.png": lambda path: save_figure(figure, path),
            "a.html": lambda path: write_report([Section("t", ())], path),
        }.items():
            Path(name).write_text("old")
            try:
                write(Path(name))
            except OSError:
                print(name, Path(name).read_text())
        print(sorted(path.name for path in Path().iterdir()))
        """
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    said = found.stdout.splitlines()
    assert said == ["a.json old", "a.png old", "a.html old", "['a.html', 'a.json', 'a.png']"], found.stderr


def test_an_error_while_writing_leaves_nothing(tmp_path):
    def write():
        with beside(tmp_path / "a.json") as new:
            new.write_text("half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_links_modes_and_devices(tmp_path):
    (tmp_path / "real.json").write_text("{}")
    (tmp_path / "real.json").chmod(0o640)
    (tmp_path / "link.json").symlink_to("real.json")
    write_json(tmp_path / "link.json", {"a": 1})
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == '{\n "a": 1\n}\n'
    assert (tmp_path / "real.json").stat().st_mode & 0o777 == 0o640
    (tmp_path / "loop").symlink_to("loop")
    for place, said in (
        (os.devnull, "is a device"),
        (tmp_path, "is a folder"),
        (tmp_path / "loop", "is a link that leads to itself"),
    ):
        with pytest.raises(ValueError, match=said):
            save_text(place, "")


def test_what_a_kill_left_is_removed_after_an_hour(tmp_path):
    old, young = tmp_path / ".a-01234567.new.json", tmp_path / ".a-76543210.new.json"
    for left in (old, young):
        left.touch()
    os.utime(old, (0, 0))
    save_text(tmp_path / "a.json", "{}")
    assert not old.exists()
    assert young.exists()


def test_a_folder_below_a_file_is_refused_before_anything_is_computed(tmp_path):
    (tmp_path / "file").touch()
    check_folder(tmp_path / "new" / "deep", "--out")
    for place in (tmp_path / "file", tmp_path / "file" / "deep"):
        with pytest.raises(ValueError, match=r"--out names a folder, and .*file is a file"):
            check_folder(place, "--out")


def test_a_prediction_is_saved_whole(tmp_path, monkeypatch):
    found = ns.predict(ns.models.MLP(6, 3, width=8, depth=3, norm="batch", seed=0), (6,), "half_mse", 16)
    found.save(tmp_path / "p.json")
    monkeypatch.setattr(os, "replace", _full)
    with pytest.raises(OSError, match="No space left"):
        found.save(tmp_path / "p.json")
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]
