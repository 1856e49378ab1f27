"""Functions of the user's: what goes wrong in them is one message with file and line."""

import subprocess
import sys

import pytest

from normscope.importing.named_functions import called, load, place_of
from normscope.messages.choices import check_choice

FAILURES = {
    "raises": ("def build():\n    return 1 / 0\n", "ZeroDivisionError: division by zero (net.py, line 2)"),
    "exits": ("import sys\ndef build():\n    sys.exit(0)\n", "SystemExit: 0 (net.py, line 3)"),
    "imports": ("import os\nimport nowhere_at_all\n", "No module named 'nowhere_at_all' (net.py, line 2)"),
    "syntax": ("def build(:\n", "(net.py, line 1)"),
    "silent": ("def build():\n    raise ValueError\n", "raised ValueError (net.py, line 2)"),
    "asks": ("def build(width):\n    pass\n", "must build the model with no arguments: missing a required argument"),
    "loud": ("def build():\n    raise ValueError('x' * 10**6)\n", "(net.py, line 2)"),
    "broken": (
        "class E(Exception):\n    def __str__(self): return 1 / 0\ndef build():\n    raise E\n",
        "raised E (net.py, line 4)",
    ),
    "lazy": ("def __getattr__(name):\n    raise RuntimeError(name)\n", "RuntimeError: build (net.py, line 2)"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_the_users_code_raises_is_one_value_error_with_file_and_line(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "net", raising=False)
    source, said = FAILURES[name]
    path = tmp_path / "net.py"
    path.write_text(source)
    with pytest.raises(ValueError, match="net.py:build|net.py was") as raised:
        called(f"{path}:build", "build the model")
    assert said in str(raised.value)
    assert len(str(raised.value)) < len(str(path)) + 400
    assert "\n" not in str(raised.value)
    assert "was imported" not in str(raised.value) or "net" not in sys.modules


def test_an_interrupt_in_the_users_code_passes(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "net", raising=False)
    (tmp_path / "net.py").write_text("def build():\n    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        called(f"{tmp_path}/net.py:build", "build the model")


@pytest.mark.parametrize("reference", [".a:b", "a..b:c", "0:1", "a-b:c", "torch.nn.:x"])
def test_a_name_that_no_module_can_have_is_said(reference):
    with pytest.raises(ValueError, match="There is no module"):
        load(reference)


def test_an_exit_in_the_users_file_is_no_status_of_ours(tmp_path):
    (tmp_path / "net.py").write_text("raise SystemExit(0)\n")
    command = [sys.executable, "-m", "normscope", "predict", "net.py:build", "--input", "4"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert found.returncode == 2
    assert found.stderr == "normscope: net.py was imported and raised SystemExit: 0 (net.py, line 1).\n"


def test_the_place_of_an_error_is_in_the_users_code_and_not_in_normscope():
    with pytest.raises(ValueError, match="mse") as raised:
        check_choice("loss", "mes", ["mse"])
    assert place_of(raised.value).startswith(" (test_named_functions.py, line ")
