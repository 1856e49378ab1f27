"""`normscope measure` as a person meets it: in a process of its own."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from normscope import data, losses, measure, models
from normscope.cli import app

NET = """
import torch
from torch import nn
import normscope as ns

def build():
    return ns.models.MLP(64, 10, width=12, depth=3, norm="batch")

def plain():
    return nn.Linear(3, 2)

def needs(width):
    return nn.Linear(width, 2)

def no_model():
    return 3

def batches():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    return [(x[:10], x[:10, :2]), (x[10:], x[10:, :2])]

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
        return iter(zip(x, x[:, :2]))

def stream():
    return torch.utils.data.DataLoader(Stream(), batch_size=10)

def listed():
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    return [x, x[:, :2]]

def dataset():
    return torch.utils.data.TensorDataset(torch.randn(16, 5), torch.randn(16, 2))

def triple():
    return (*listed(), 3)

def named():
    return {"x": listed()[0]}, torch.zeros(20, 2)

def breaks():
    return {}["missing"]

class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.turns = nn.Linear(64, 10), (i for i in range(9))
    def forward(self, x):
        return self.layer(x.flatten(1))

class Full(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
    def forward(self, x):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

def holds():
    return Holds()

def full():
    return Full()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("measure")
    (path / "net.py").write_text(NET)
    generator = np.random.default_rng(0)
    np.savez(path / "some.npz", x=generator.standard_normal((30, 3)), y=generator.standard_normal((30, 2)))
    np.savez(path / "wrong.npz", inputs=np.zeros(3))
    return path


def run(*arguments, cwd):
    command = [sys.executable, "-m", "normscope", "measure", *arguments]
    env = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "NO_COLOR": "1"}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_it_says_what_measure_finds(folder):
    options = ["--data", "digits", "--loss", "half_mse", "--momentum", "0.9", "--batch-size", "128", "--lr", "0.5"]
    shown = run("net.py:build", *options, "--layers", cwd=folder)
    assert shown.returncode == 0, shown.stderr
    found = run("net.py:build", *options, "--json", cwd=folder)
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    digits = data.digits(seed=0)
    x, y = next(data.batches(digits.x_train, digits.y_train, batch_size=128, seed=0))
    model = models.MLP(64, 10, width=12, depth=3, norm="batch")
    expected = measure(model, losses.half_mse, (x, y), momentum=0.9, compare=["frozen", "running"])
    assert result["schema"] == 2
    assert result["lambda_max"] == pytest.approx(expected.lambda_max, rel=1e-5)
    assert result["by_statistics"] == pytest.approx(expected.by_statistics, rel=1e-5)
    assert result["verdict"]["text"] == expected.verdict(0.5).text
    for text in (f"{expected.lambda_max:.4g}", f"{expected.eta_star:.4g}", "residual", "frozen", "running", "half_mse"):
        assert text in shown.stdout
    assert "running statistics are those of initialization" in shown.stdout
    assert "times eta*" in shown.stdout


@pytest.mark.slow
def test_arrays_and_functions_give_data(folder):
    for reference, samples in (("some.npz", [16]), ("net.py:batches", [10, 10]), ("net.py:listed", [16])):
        arguments = ["--data", reference, "--loss", "half_mse", "--batch-size", "16", "--json"]
        found = run("net.py:plain", *arguments, cwd=folder)
        assert found.returncode == 0, found.stderr
        result = json.loads(found.stdout)
        assert result["settings"]["samples"] == samples
        assert list(result["by_statistics"]) == ["batch"]
        assert result["verdict"] is None


def test_of_a_loader_as_many_batches_as_asked_for(folder, monkeypatch, capsys):
    from normscope import cli

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for more, samples in (((), [10, 10]), (("--batches", "1"), [10])):
        arguments = ["net.py:plain", "--data", "net.py:batches", "--loss", "mse", "--json", *more]
        monkeypatch.setattr(sys, "argv", ["normscope", "measure", *arguments])
        with pytest.raises(SystemExit) as status:
            cli.main()
        out, err = capsys.readouterr()
        assert not status.value.code, err
        assert json.loads(out)["settings"]["samples"] == samples


def test_one_batch_has_no_number_of_batches(folder, monkeypatch, capsys):
    from normscope import cli

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["normscope", "measure", "net.py:plain", "--data", "digits", "--batches", "3"])
    with pytest.raises(SystemExit) as status:
        cli.main()
    assert status.value.code == 2
    assert "--batches is for a loader" in capsys.readouterr().err


def test_a_loader_that_does_not_know_its_length(folder, monkeypatch, capsys):
    """torch gives it a __len__ all the same, which raises."""
    from normscope import cli

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = ["net.py:plain", "--data", "net.py:stream", "--loss", "mse", "--json"]
    monkeypatch.setattr(sys, "argv", ["normscope", "measure", *arguments])
    with pytest.raises(SystemExit) as status:
        cli.main()
    out, err = capsys.readouterr()
    assert not status.value.code, err
    assert json.loads(out)["settings"]["samples"] == [10, 10]
    assert "2 batches of the DataLoader were read" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["net.py:build", "--data", "digitz"], "Did you mean 'digits'"),
        (["net.py:bild", "--data", "digits"], "Did you mean 'build'"),
        (["nothere.py:build", "--data", "digits"], "no file"),
        (["net.py:needs", "--data", "digits"], "with no arguments"),
        (["net.py:no_model", "--data", "digits"], "must return an ns.Setup, a dict of its fields, or a tuple"),
        (["net.py:plain", "--data", "digits"], "does not take this batch"),
        (["net.py:holds", "--data", "digits"], "normscope: The model.turns holds an iterator (generator)"),
        (["net.py:full", "--data", "digits"], "normscope: Out of memory; use a smaller batch. RuntimeError: Default"),
        (["net.py:plain", "--data", "wrong.npz"], "arrays x and y; it has inputs"),
        (["net.py:plain", "--data", "nothere.npz"], "There is no file nothere.npz"),
        (["net.py:plain", "--data", "net.py:dataset"], "Return DataLoader(dataset, batch_size=128)"),
        (["net.py:plain", "--data", "net.py:triple"], "a pair of tensors or arrays (x, y)"),
        (["net.py:plain", "--data", "net.py:named"], "a pair of tensors or arrays (x, y)"),
        (["net.py:plain", "--data", "net.py:breaks"], "raised KeyError: 'missing'"),
        (["net.py:breaks", "--data", "digits"], "was to build the model or set up a training and raised KeyError"),
        (["net.py:build", "--data", "digits", "--lr", "nan"], "--lr is a positive number; got nan"),
        (["net.py:build", "--data", "digits", "--lr", "-1"], "--lr is a positive number; got -1"),
        (["net.py:build", "--data", "digits", "--loss", "msse"], "Did you mean 'mse'"),
        (["net.py:build", "--data", "digits", "--stats", "evil"], "stats must be one of"),
        (["net.py:build", "--data", "digits", "--momentum", "1"], "momentum"),
    ],
)
def test_mistakes_are_one_message_and_status_2(folder, arguments, message, monkeypatch, capsys):
    """In this process, by the command's own entry, to be quick."""
    from normscope import cli

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["normscope", "measure", *arguments])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as status:
        cli.main()
    said = capsys.readouterr().err
    assert status.value.code == 2
    assert message in said
    assert said.startswith("normscope: ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there_is_named(folder):
    found = run("net.py:plain", "--data", "some.npz", "--device", "cuda", cwd=folder)
    assert found.returncode == 2
    assert "--device cuda" in found.stderr
    assert "Traceback" not in found.stderr


def test_copies_beyond_max_memory_are_refused(tmp_path):
    (tmp_path / "memory_net.py").write_text(
        "import torch, normscope as ns\n\ndef setup():\n"
        "    x, y = torch.randn(16, 4), torch.randint(2, (16,))\n"
        "    return torch.nn.Linear(4, 2), ns.losses.cross_entropy, [(x, y)]\n"
    )
    named = f"{tmp_path / 'memory_net.py'}:setup"
    enough = CliRunner().invoke(app, ["measure", named, "--max-memory", "1e9"])
    assert enough.exit_code == 0, enough.output
    refused = CliRunner().invoke(app, ["measure", named, "--max-memory", "1"])
    assert isinstance(refused.exception, ValueError | MemoryError)
    assert "max_memory is 1 " in str(refused.exception)
