"""Pairs of a linear layer and BatchNorm in a network, and the command line over them."""

import copy
import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import normscope as ns
from normscope.bounds import check_network, pairs
from normscope.theory import inequalities as theory


class _Awkward(nn.Module):
    """A residual branch, a layer used twice, a norm that is not fed by a linear layer, dropout in train mode."""

    def __init__(self):
        super().__init__()
        self.first, self.first_norm = nn.Linear(6, 5), nn.BatchNorm1d(5)
        self.twice, self.twice_norm = nn.Linear(5, 5), nn.BatchNorm1d(5)
        self.branch, self.branch_norm = nn.Linear(5, 5, bias=False), ns.norms.BatchNorm1d(5)
        self.last_norm, self.drop, self.out = nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 3)

    def forward(self, x):
        h = nn.functional.relu(self.first_norm(self.first(x)), inplace=True)
        for _ in range(2):
            h = self.twice_norm(self.twice(h)).relu()
        h = h + self.branch_norm(self.branch(h)).tanh()
        return self.out(self.drop(self.last_norm(h)))


def _batch(m=12):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(m, 6, generator=generator), torch.arange(m) % 3


def test_pairs():
    torch.manual_seed(0)
    assert pairs(_Awkward(), _batch()[0]) == [("first", "first_norm"), ("branch", "branch_norm")]
    assert pairs(ns.models.CNN(norm="batch"), torch.randn(2, 3, 32, 32)) == [("0", "1"), ("3", "4"), ("6", "7")]
    preact = ns.models.PreActResNet18(width=4, norm="batch")
    found = pairs(preact, torch.randn(2, 3, 32, 32))
    assert all(isinstance(dict(preact.named_modules())[linear], nn.Conv2d) for linear, _ in found)
    assert found


def test_every_pair_of_a_network_and_no_trace():
    torch.manual_seed(0)
    model = _Awkward()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = check_network(model, ns.losses.cross_entropy, _batch(), units=2)
    assert list(found) == ["first", "branch"]
    assert all(bounds.holds for bounds in found.values()), "\n".join(map(str, found.values()))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert "forward" not in vars(model.first_norm)


def test_downstream_is_the_rest_of_the_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), ns.norms.BatchNorm1d(4, eps=0), nn.Tanh(), nn.Linear(4, 3)).double()
    x, y = _batch()
    x = x.double()
    z = model[1](model[0](x)).detach().requires_grad_()
    (g,) = torch.autograd.grad(ns.losses.half_mse(model[2:](z), y), z)
    frame = check_network(model, ns.losses.half_mse, (x, y))["0"].frame()
    rows = frame.query("statement == 'Theorem 4.4' and form == 'corrected'")
    gain = (model[1].weight.detach().double() / model[0](x).detach().std(0, correction=0)) ** 2
    lam = torch.linalg.matrix_norm(x, 2)
    yh = (model[0](x) - model[0](x).mean(0)) / model[0](x).std(0, correction=0)
    right = gain * lam**2 * (g.square().sum(0) - g.sum(0) ** 2 / 12 - (g * yh).sum(0) ** 2 / 12)
    assert rows["right"].to_numpy() == pytest.approx(right.detach().numpy(), rel=1e-10)


def test_a_network_without_pairs_is_refused():
    with pytest.raises(ValueError, match="hands its output straight to a BatchNorm"):
        check_network(nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3)), ns.losses.half_mse, _batch())


class _Casting(nn.Sequential):
    def forward(self, x):
        return super().forward(x.float())


def test_bad_batches():
    model, (x, y) = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), _batch()
    for batch, got in ((x, "got one tensor"), ([(x,)], "got a tuple of 1"), ((x.numpy(), y), "got NumPy arrays")):
        with pytest.raises(ValueError, match=got):
            check_network(model, ns.losses.cross_entropy, batch)
    with pytest.raises(ValueError, match=r"does not take the batch, a tuple of 2"):
        check_network(model, ns.losses.cross_entropy, (x[:, :5], y))
    with pytest.raises(ValueError, match="take casts to other formats out of it"):
        check_network(_Casting(*model), ns.losses.cross_entropy, (x, y))


NET = """
import normscope as ns
def build():
    return ns.models.MLP(64, 10, width=12, norm="batch")
def plain():
    return ns.models.MLP(64, 10, width=12)
def data():
    digits = ns.data.digits(seed=0)
    return digits.x_train[:40], digits.y_train[:40]
def triple():
    return *data(), 1
def broken():
    raise RuntimeError("no such weights")
"""


def _run(folder, *arguments):
    from normscope.cli import app

    (folder / "net.py").write_text(NET)
    return CliRunner().invoke(app, ["bounds", *(a.replace("net.py", str(folder / "net.py")) for a in arguments)])


def test_command_line(tmp_path):
    found = _run(tmp_path, "net.py:build", "--data", "digits", "--batch-size", "24", "--units", "2", "--train", "5")
    assert found.exit_code == 0, found.output
    assert found.output.count("Theorem 4.1                      printed   <=") == 3
    assert "layer 1" in found.output
    assert "Lemma 4.5" in found.output
    assert "Every corrected statement holds." in found.output


def test_command_line_json(tmp_path):
    found = _run(tmp_path, "net.py:build", "--data", "net.py:data", "--units", "1", "--batch-size", "16", "--json")
    assert found.exit_code == 0, found.output
    said = json.loads(found.output)
    stored = said["layers"]
    assert (said["schema"], list(stored)) == (1, ["1", "4", "7"])
    assert all(layer["holds"] and layer["m"] == 16 for layer in stored.values())


def test_command_line_bad_input(tmp_path):
    found = _run(tmp_path, "net.py:plain", "--data", "digits")
    assert isinstance(found.exception, ValueError)
    assert "hands its output straight to a BatchNorm" in str(found.exception)
    found = _run(tmp_path, "net.py:build", "--data", "digits", "--loss", "mse")
    assert "loss must be one of" in str(found.exception)
    found = _run(tmp_path, "net.py:build", "--data", "net.py:triple")
    assert "must give a pair of tensors or arrays (x, y), or batches of them; got Tensor, Tensor, int" in str(
        found.exception
    )
    found = _run(tmp_path, "net.py:broken", "--data", "digits")
    assert isinstance(found.exception, ValueError)
    assert "was to build the model or set up a training and raised RuntimeError: no such weights" in str(
        found.exception
    )


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_command_line_says_by_its_status_that_a_statement_fails(tmp_path, monkeypatch, more):
    right = theory.squared_gradient
    monkeypatch.setattr(theory, "squared_gradient", lambda *args, **more: 2 * right(*args, **more))
    found = _run(tmp_path, "net.py:build", "--data", "digits", "--batch-size", "16", "--units", "1", *more)
    assert found.exit_code == 1
    assert isinstance(found.exception, SystemExit)
    assert "NOT every corrected statement holds: ['1', '4', '7']" in found.output or more
