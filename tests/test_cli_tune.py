"""`normscope tune` prints what `ns.tune` finds, and writes a file that `normscope report` reads."""

import json
import sys

import pytest

from normscope.cli import main
from normscope.tuning.rehearsal import rehearse

TRAIN = """
import torch
import normscope as ns

def setup():
    digits = ns.data.digits(seed=0)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    batches = ns.data.batches(digits.x_train, digits.y_train, batch_size=64, seed=0, steps=60)
    return model, ns.losses.cross_entropy, batches, torch.optim.SGD(model.parameters(), lr=0.1)

def without():
    return setup()[:3]
"""


def ran(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["normscope", *map(str, arguments)])
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    return code, *capsys.readouterr()


@pytest.fixture
def train(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path / "train.py"


def test_it_prints_writes_and_reports(monkeypatch, capsys, train, tmp_path):
    out = tmp_path / "tuning.json"
    code, printed, _ = ran(monkeypatch, capsys, "tune", f"{train}:setup", "--steps", 500, "--out", out)
    assert code == 0
    assert printed.startswith("lr = ")
    held = json.loads(out.read_text())
    assert f"lr = {held['lr']:.2g}" in printed
    code, shown, _ = ran(monkeypatch, capsys, "tune", f"{train}:setup", "--steps", 500, "--json")
    assert json.loads(shown)["lr"] == held["lr"]
    page = tmp_path / "page.html"
    assert ran(monkeypatch, capsys, "report", out, "--out", page)[0] == 0
    assert "Train with a learning rate of" in page.read_text()


def test_ctrl_c_says_what_is_kept(monkeypatch, capsys, train, tmp_path):
    store = tmp_path / "rehearsals.jsonl"
    made = []

    def stops(stage, lr, steps):
        if made:
            raise KeyboardInterrupt
        made.append(rehearse(stage, lr, steps))
        return made[0]

    monkeypatch.setattr("normscope.tuning.engines.rehearse", stops)
    command = ("tune", f"{train}:setup", "--steps", 500)
    code, _, said = ran(monkeypatch, capsys, *command, "--store", store)
    assert code == 1
    assert f"finished rehearsals are in {store}" in said
    assert len(store.read_text().splitlines()) == 1
    code, _, said = ran(monkeypatch, capsys, *command)
    assert code == 1
    assert "from the beginning" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("setup", "--steps", 10), "at least 20; got 10"),
        (("setup",), "planned number of steps"),
        (("without", "--steps", 100), "needs optimizer="),
        (("setup", "--steps", 100, "--out", "/no/such/folder/x.json"), "--out names a JSON file"),
    ],
)
def test_a_mistake_is_one_message(monkeypatch, capsys, train, arguments, message):
    name, *rest = arguments
    code, _, said = ran(monkeypatch, capsys, "tune", f"{train}:{name}", *rest)
    assert code == 2
    assert message in said
    assert "Traceback" not in said
