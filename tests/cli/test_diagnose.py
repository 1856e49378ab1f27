"""`normscope diagnose`: what it prints, writes, and with which status it exits."""

import json
import sys

import pytest
import torch
from torch import nn

from normscope.cli import main

TRAIN = """
import torch
from torch import nn
import normscope as ns

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16, momentum=0.99), nn.ReLU(), nn.Linear(16, 3))

def setup():
    model = build()
    x = torch.randn(320, 6, generator=torch.Generator().manual_seed(0))
    batches = [(part, (part[:, 0] > 0).long()) for part in x.split(32)]
    return ns.Setup(model, nn.CrossEntropyLoss(), batches, torch.optim.SGD(model.parameters(), lr=0.1), steps=100)
"""


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)

    def called(*arguments):
        monkeypatch.setattr(sys, "argv", ["normscope", "diagnose", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return called


def test_findings_are_printed_with_their_fix(run):
    code, out, _ = run("train.py:setup")
    assert code == 0
    assert "NS101 momentum-inverted [warning]" in out
    assert "m.momentum = 1 - m.momentum" in out


def test_fail_on(run):
    assert run("train.py:setup", "--fail-on", "warning")[0] == 1
    assert run("train.py:setup", "--fail-on", "error")[0] == 0
    code, _, err = run("train.py:setup", "--fail-on", "wrong")
    assert (code, "Did you mean 'warning'" in err or "must be one of" in err) == (2, True)


def test_files(run, tmp_path):
    code, out, _ = run("train.py:setup", "--json", "--sarif", "run.sarif", "--out", "run.json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "run.json").read_text())
    sarif = json.loads((tmp_path / "run.sarif").read_text())
    assert "NS101" in {result["ruleId"] for result in sarif["runs"][0]["results"]}
    code, _, err = run("train.py:setup", "--sarif", ".")
    assert (code, "--sarif names a file" in err) == (2, True)


def test_a_checkpoint_is_judged_without_a_training(run, tmp_path):
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    code, out, _ = run("--checkpoint", "weights.pt", "train.py:build")
    assert code == 0
    assert "NS101" in out
    assert "Not judged" in out
    code, _, err = run("--checkpoint", "none.pt", "train.py:build")
    assert (code, "there is no file none.pt" in err) == (2, True)
    (tmp_path / "broken.pt").write_text("text")
    code, _, err = run("--checkpoint", "broken.pt", "train.py:build")
    assert (code, "could not be read as a state dict" in err) == (2, True)
