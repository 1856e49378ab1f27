"""The examples run as they stand, each in a process of its own, and leave behind what they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from normscope.monitor import frame_of, records_of
from wandb_files import finished

EXAMPLES = Path(__file__).parent.parent / "examples"

pytestmark = pytest.mark.slow


def _output(name, folder, *arguments):
    command = [sys.executable, EXAMPLES / name, *arguments]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_plain_loop(tmp_path):
    said = _output("monitor_plain.py", tmp_path)
    frame = frame_of(records_of(tmp_path / "monitor.jsonl"))
    assert list(frame["step"]) == list(range(0, 200, 10))
    assert frame["loss"].iloc[-1] < 0.1 * frame["loss"].iloc[0]
    assert (frame["loss_min"] <= frame["loss_max"]).all()
    assert "critical_step" in said
    assert "- [ok] No scale (gamma) of a normalizer is dead." in said


def test_lightning_into_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said = _output("monitor_lightning.py", tmp_path)
    events = EventAccumulator(str(tmp_path / "runs/lightning")).Reload()
    assert [event.step for event in events.Scalars("normscope/beta")] == list(range(0, 46, 5))
    assert "normscope/network.2/activation" in events.Tags()["histograms"]
    assert "The coming update" in said


def test_transformers_into_a_file(tmp_path):
    said = _output("monitor_transformers.py", tmp_path)
    records = records_of(tmp_path / "monitor-bert.jsonl")
    assert [record.step for record in records if "landscape" in record.results] == [0, 10, 20, 30, 40, 50]
    assert "bert.encoder.layer.0.attention.self.query" in records[0].by_layer()
    assert "The coming update" in said


def test_tuning_in_lightning(tmp_path):
    said = _output("tune_lightning.py", tmp_path).splitlines()
    tuned = next(line for line in said if line.startswith("lr = "))
    assert tuned.split()[2] == said[-1].split()[-1].rstrip(".")


def test_tuning_in_transformers(tmp_path):
    said = _output("tune_transformers.py", tmp_path)
    assert "for AdamW, 300 steps, linear" in said
    # Two classes of equal size: chance is log 2 = 0.69.
    assert float(said.split("to a loss of ")[1].split()[0].rstrip(".")) < 0.6


def test_weights_and_biases_offline(tmp_path):
    said = _output("monitor_wandb.py", tmp_path)
    rows = [
        {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        for record in finished(tmp_path)
        if record.WhichOneof("record_type") == "history"
    ]
    steps = [json.loads(row["normscope/step"]) for row in rows if "normscope/beta" in row]
    assert steps == [0, 10, 20]
    assert len([row for row in rows if "loss" in row]) == 30
    assert "The coming update" in said


def test_a_notebook_shows_pages(tmp_path):
    from nbformat import read

    written = tmp_path / "out.ipynb"
    code = (
        "import sys, nbformat; from nbclient import NotebookClient\n"
        "book = nbformat.read(sys.argv[1], as_version=4)\n"
        "NotebookClient(book, timeout=120).execute()\n"
        "nbformat.write(book, sys.argv[2])"
    )
    env = os.environ | {"OMP_NUM_THREADS": "1", "IPYTHONDIR": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-c", code, EXAMPLES / "verdict.ipynb", written]
    found = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    shown = [out.data for cell in read(written, as_version=4).cells[2:] for out in cell.outputs if "data" in out]
    assert [data["text/html"].startswith("<iframe srcdoc=") for data in shown] == [True, True, True, False]
    assert "critical_step" in shown[3]["text/html"]
    assert "Use a learning rate below eta*" in shown[0]["text/html"]


def test_scikit_learn_pipeline(tmp_path):
    import joblib

    said = _output("solve_pipeline.py", tmp_path)
    pipeline = joblib.load(tmp_path / "digits.joblib")
    assert [name for name, _ in pipeline.steps] == ["standardscaler", "gdnpclassifier"]
    assert float(said.split(": ")[1].split()[0]) > 0.85
    assert "the bound's least slack" in said


def test_ray_fills_the_journal(tmp_path):
    from normscope.sweeping import Journal

    said = _output("sweep_ray.py", tmp_path, "--out", "runs")
    with Journal(tmp_path / "runs/sweep.sqlite", readonly=True) as journal:
        assert len(journal.plans()) == 1
    assert said.count("gamma") == 2
    assert "What this means for you" in (tmp_path / "runs/phase.html").read_text()


def test_gradient_explosion(tmp_path):
    small = ["--depth", "20", "--width", "60", "--seeds", "2", "--widths", "40", "--batch-sizes", "8", "16"]
    _output("gradient_explosion.py", tmp_path, *small, "--out", "explosion.json")
    stored = json.loads((tmp_path / "explosion.json").read_text())
    assert [row["name"] for row in stored["rates"]] == [
        "relu, batch 8",
        "relu, batch 16",
        "tanh, batch 8",
        "linear, batch 8",
    ]
    assert all(row["measured"] == pytest.approx(row["theory"], rel=0.5) for row in stored["rates"])
    assert len(stored["remedies"]) == 13
