"""What does not fit in a training script: one message in every verb, and nothing trained."""

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
SETUPS = """
    import torch, normscope as ns
    from torch import nn

    X, Y = torch.randn(16, 6), torch.randint(3, (16,))

    def of(outputs, loss, x, y):
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))
        return ns.Setup(model, loss, [(x, y)], torch.optim.SGD(model.parameters(), 0.1))

    def broadcast(): return of(1, nn.MSELoss(), X, torch.randn(16))
    def integers(): return of(1, nn.MSELoss(), X, Y[:, None])
    def one_class(): return of(1, nn.CrossEntropyLoss(), X, torch.zeros(16, dtype=torch.long))
    def empty(): return of(3, nn.CrossEntropyLoss(), X[:0], Y[:0])

    def leaves():
        def loss(outputs, targets):
            raise SystemExit(0)
        return of(3, loss, X, Y)
"""


@pytest.mark.parametrize("verb", ["measure", "monitor", "bounds"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broadcast", "compares outputs and targets of one shape"),
        ("integers", "takes numbers as targets"),
        ("one_class", "cross_entropy over one class is 0"),
        ("empty", "The batch is empty"),
        ("leaves", "ended the program with SystemExit(0) (train.py, line 18)"),
    ],
)
def test_one_message_and_status_2(verb, name, said, tmp_path, monkeypatch, capsys):
    from normscope import cli

    (tmp_path / "train.py").write_text(textwrap.dedent(SETUPS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["normscope", verb, f"train.py:{name}"])
    monkeypatch.delitem(sys.modules, "train", raising=False)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert said in err
    assert len(err.strip().splitlines()[-1]) > 20
    assert "Traceback" not in err + out


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"loss_fn": nn.CrossEntropyLoss}, r"got the class itself.*CrossEntropyLoss\(\)"),
        ({"clip": "x"}, "clip is the largest norm"),
        ({"scheduler": 3}, r"scheduler must have a method step\(\)"),
        ({"scaler": 3}, "scaler must have"),
        ({"averaged_model": 3}, "averaged_model must have"),
        ({"accumulate": True}, "accumulate counts"),
    ],
)
def test_fields_of_a_setup_are_checked(fields, said):
    with pytest.raises(ValueError, match=said):
        ns.Setup(nn.Linear(6, 3), **({"loss_fn": F.cross_entropy, "batches": []} | fields))


def test_a_list_in_a_setup_is_one_of_batches():
    tokens = [torch.randint(5, (4, 7)) for _ in range(3)]
    model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5))

    def forward(model, batch):
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    found = ns.measure(ns.Setup(model, None, tokens, forward=forward))
    assert len(found.lambda_by_batch) == 3


def test_only_a_bias_before_batchnorm_has_no_curvature():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    y = torch.randint(3, (16,))
    with pytest.raises(ValueError, match="lambda_max is 0"):
        ns.measure(model, F.cross_entropy, (X, y), parameters=lambda name, _: name == "0.bias")


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, source):
        self.source = source

    def __iter__(self):
        return self.source


def test_batches_read_of_a_stream_still_come_in_training():
    batches = [(X[2 * i : 2 * i + 2], torch.tensor([0, 1])) for i in range(8)]
    loader = torch.utils.data.DataLoader(Stream(iter(batches)), batch_size=None)
    setup = ns.Setup(nn.Linear(6, 3), F.cross_entropy, loader)
    before = torch.get_rng_state()
    ns.measure(setup)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(setup.batches, batches, strict=True))


def test_a_product_that_is_not_finite_is_named():
    from normscope.curvature import lanczos

    with pytest.raises(ValueError, match="not finite in float32"):
        lanczos(lambda v: v * torch.nan, torch.ones(3))


def test_a_pipe_in_a_folder_is_refused(tmp_path):
    import os

    if not hasattr(os, "mkfifo"):
        pytest.skip("There are no pipes in files here.")
    os.mkfifo(tmp_path / "phase-x.json")
    command = [sys.executable, "-m", "normscope", "report", str(tmp_path), "--out", str(tmp_path / "page.html")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 2
    assert "is not a plain file" in ran.stderr
