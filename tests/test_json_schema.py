"""Every JSON that normscope writes, prints or keeps says which schema it has."""

import inspect
import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import normscope as ns
from normscope import demo as demonstration
from normscope.cli import app, main
from normscope.cli.data import app as data_app
from normscope.curvature import mean_mode, spectrum
from normscope.report.result_files import sections_of
from normscope.sweeping import Plan
from normscope.sweeping.diagram import save_lines

ROOT = Path(__file__).parent.parent
STORED = [path for folder in ("results", "benchmarks/results") for path in sorted((ROOT / folder).rglob("*.json"))]
NET = """
import torch
import normscope as ns

def build():
    return ns.models.MLP(64, 10, width=8, depth=2, norm="batch", seed=0)

def setup():
    digits, model = ns.data.digits(seed=0), build()
    batches = ns.data.batches(digits.x_train, digits.y_train, batch_size=64, seed=0, steps=4)
    return model, ns.losses.cross_entropy, batches, torch.optim.SGD(model.parameters(), lr=0.1)
"""
PLAN = """
model = "MLP"
data = "digits"
loss = "half_mse"
epochs = 1
batch_size = 512
learning_rates = [0.01, 1e4]
values = [1.0]
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
VERBS = {
    "bounds": ("net.py:build", "--data", "digits", "--units", "1"),
    "cite": (),
    "data fetch": ("mnist",),
    "demo": (),
    "diagnose": ("net.py:setup", "--rules", "NS101"),
    "doctor": (),
    "measure": ("net.py:build", "--data", "digits", "--batch-size", "16"),
    "monitor": ("net.py:setup",),
    "predict": ("net.py:build", "--input", "64"),
    "report": ("prediction.json",),
    "reproduce": ("--list", "--out", str(ROOT / "results/reproduce")),
    "solve": ("table.csv", "--target", "y"),
    "sweep": ("plan.toml", "--quiet", "--device", "cpu"),
    "tune": ("net.py:setup", "--steps", "200"),
}


BATCH = torch.linspace(-1, 1, 96).sin().view(16, 6), torch.linspace(-1, 1, 48).view(16, 3)


def mlp():
    return ns.models.MLP(6, 3, width=8, depth=2, norm="batch", seed=0)


def trained(folder):
    model = mlp()
    return ns.train(model, ns.losses.half_mse, [BATCH] * 3, torch.optim.SGD(model.parameters(), lr=0.01))


def tuned(folder):
    model = mlp()
    return ns.tune(model, ns.losses.half_mse, [BATCH], torch.optim.SGD(model.parameters(), lr=0.01), steps=200)


def swept(folder):
    (folder / "plan.toml").write_text(PLAN)
    return ns.sweep(Plan.from_toml(folder / "plan.toml"), folder, quiet=True)


def bounded(folder):
    return ns.bounds.check(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), BATCH[0], lambda z: (z**2).sum())


# One of each kind that has a `save`.
SAVED = {
    "prediction": lambda folder: ns.predict(mlp(), (6,), batch_size=16),
    "measurement": lambda folder: ns.measure(mlp(), ns.losses.half_mse, BATCH),
    "spectrum": lambda folder: spectrum(mlp(), ns.losses.half_mse, BATCH, starts=1, steps=4),
    "mean mode": lambda folder: mean_mode(mlp(), BATCH),
    "bounds": bounded,
    "training": trained,
    "phase diagram": swept,
    "tuning": tuned,
    "diagnosis": lambda folder: ns.diagnose(mlp(), ns.losses.half_mse, [BATCH], rules="NS101"),
}


def schema_fits(held):
    """Predictions, measurements, runs, claims of papers and the demo have schema 2, all else has 1."""
    kinds = ("prediction", "measurement", "run", "landscapes", "demo")
    claim = "experiment" in held or ("findings" in held and "kind" not in held)
    second = held.get("kind") in kinds or claim
    return held["schema"] == (2 if second else 1)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored(path):
    assert schema_fits(json.loads(path.read_text(encoding="utf-8")))


def test_every_verb_has_a_case():
    """A verb that is new and prints JSON has to stand in the table above."""
    held = [(one, one.callback) for one in app.registered_commands]
    names = {one.name or callback.__name__: callback for one, callback in held}
    names |= {f"data {one.callback.__name__}": one.callback for one in data_app.registered_commands}
    assert {name for name, callback in names.items() if "as_json" in inspect.signature(callback).parameters} == set(
        VERBS
    )
    assert set(names) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_printed_and_written(verb, monkeypatch, capsys, tmp_path):
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "table.csv").write_text("a,b,y\n" + "".join(f"{i % 7},{i % 3},{i % 5}\n" for i in range(40)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("normscope.data.fetch", lambda name, root: Path("data") / name)
    monkeypatch.setattr("normscope.demo.run_demo", partial(demonstration.run_demo, steps=3))
    if verb == "report":
        ns.predict(mlp(), (6,)).save("prediction.json")
    monkeypatch.setattr(sys, "argv", ["normscope", *verb.split(), *VERBS[verb], "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().out
    assert not ended.value.code, printed
    assert schema_fits(json.loads(printed))
    for path in tmp_path.rglob("*.json"):
        assert schema_fits(json.loads(path.read_text())), path.name
    for path in tmp_path.rglob("*.jsonl"):
        assert schema_fits(json.loads(path.read_text().splitlines()[0])), path.name


@pytest.mark.parametrize("kind", SAVED)
def test_saved_and_read_again(kind, tmp_path):
    """A saved result says its schema, and the report reads it back; one of another schema it refuses by name."""
    path = tmp_path / "saved.json"
    SAVED[kind](tmp_path).save(path)
    held = json.loads(path.read_text())
    assert schema_fits(held)
    assert sections_of([path])[0].title
    path.write_text(json.dumps(held | {"schema": 3}))
    with pytest.raises(ValueError, match=r"schema 3; this .* reads 1"):
        sections_of([path])


def test_a_prediction_of_schema_1_is_read_by_its_former_names(tmp_path):
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    ns.predict(mlp(), (6,)).save(new)
    held = json.loads(new.read_text())
    held["seen"], held["start_rate"] = held.pop("calibrated_range"), held.pop("first_guess")
    old.write_text(json.dumps(held | {"schema": 1}))
    assert [said.text for said in sections_of([old])[0].in_order()] == [
        said.text for said in sections_of([new])[0].in_order()
    ]


def test_lines_of_a_sweep(tmp_path):
    save_lines({"measured": {1.0: 0.1}}, tmp_path / "lines.json")
    assert json.loads((tmp_path / "lines.json").read_text())["schema"] == 1
