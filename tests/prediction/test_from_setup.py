"""`predict` of a Setup: its model, its loss and SGD's momentum; what it cannot use is said."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

import normscope as ns
from normscope import losses
from normscope.cli import app


def made(loss_fn, optimizer=torch.optim.SGD, **options):
    model = ns.models.MLP(20, 5, width=60, norm="batch", seed=0)
    return ns.Setup(model, loss_fn, [], None if optimizer is None else optimizer(model.parameters(), lr=0.1, **options))


@pytest.mark.parametrize(
    ("loss_fn", "name"),
    [
        *((nn.CrossEntropyLoss(), "cross_entropy"), (F.mse_loss, "mse"), (losses.half_sse, "half_sse")),
        (lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1), "cross_entropy"),
        (lambda z, y: 0.5 * (z - y).square().sum(1).mean(), "half_mse"),
    ],
)
def test_a_setup_gives_model_loss_and_momentum(loss_fn, name):
    setup = made(loss_fn, momentum=0.9, nesterov=True)
    found = ns.predict(setup, (20,))
    by_hand = ns.predict(setup.model, (20,), name, momentum=0.9, nesterov=True)
    assert (found.loss, found.optimizer, found.eta_star) == (name, by_hand.optimizer, by_hand.eta_star)
    assert found.optimizer == "gradient descent with momentum 0.9 (Nesterov)"


def test_a_loss_may_be_a_function():
    model = made(None).model
    assert ns.predict(model, (20,), nn.CrossEntropyLoss()).eta_star == ns.predict(model, (20,)).eta_star
    assert ns.predict(model, (20,), nn.MSELoss()).loss == "mse"
    with pytest.raises(ValueError, match=r"does not know this loss \(L1Loss\(\)\)\. Name the one nearest"):
        ns.predict(model, (20,), nn.L1Loss())


def test_arguments_beside_a_setup_come_first():
    found = ns.predict(made(nn.MSELoss(), momentum=0.9), (20,), "half_mse", momentum=0.5)
    assert (found.loss, found.optimizer) == ("half_mse", "gradient descent with momentum 0.5")


def test_an_optimizer_without_theory_is_noted():
    adam, alone = (ns.predict(made(nn.MSELoss(), kind), (20,)) for kind in (torch.optim.Adam, None))
    assert adam.eta_star == alone.eta_star
    assert any("and not of the setup's Adam: ns.measure" in note for note in adam.notes)
    assert not any("the setup's" in note for note in alone.notes)


@pytest.mark.parametrize("loss_fn", [nn.L1Loss(), nn.MSELoss(reduction="sum"), lambda z, y: z.sum()])
def test_a_loss_it_does_not_know_is_refused_with_a_way_out(loss_fn):
    with pytest.raises(ValueError, match=r"does not know the loss of this setup .* loss= \(--loss\): half_mse"):
        ns.predict(made(loss_fn), (20,))
    assert ns.predict(made(loss_fn), (20,), "half_mse").loss == "half_mse"


def test_the_command_takes_a_setup(tmp_path):
    (tmp_path / "predicted_setup.py").write_text(
        "import torch, normscope as ns\n\ndef setup():\n"
        "    model = ns.models.MLP(20, 5, width=60, norm='batch')\n"
        "    return ns.Setup(model, torch.nn.MSELoss(), [], torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))\n"
    )
    found = CliRunner().invoke(app, ["predict", f"{tmp_path / 'predicted_setup.py'}:setup", "--input", "20", "--json"])
    assert found.exit_code == 0, found.output
    stored = json.loads(found.output)
    assert (stored["loss"], stored["optimizer"]) == ("mse", "gradient descent with momentum 0.9")
