"""Predictions run without gradients where they can: what they leave behind is good for those that need them."""

import gc
import sys

import pytest
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.cli.importing import at_once

TABLES: list[Tensor] = []


@ns.prediction.elementwise_module
class Tabled(nn.Module):
    """Keeps a tensor outside of any module from its first call on, and has a trained number."""

    def __init__(self) -> None:
        super().__init__()
        self.size = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        if not TABLES:
            TABLES.append(torch.linspace(1.0, 1.0, 1, dtype=x.dtype) * self.size.detach())
        return torch.sin(x * TABLES[0]) * self.size


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 40), Tabled(), nn.Linear(40, 3)).double()


def test_what_an_activation_keeps_can_be_trained_with():
    TABLES.clear()
    model = net()
    ns.predict(model, (20,))
    assert TABLES
    model(torch.randn(4, 20, dtype=torch.float64)).sum().backward()
    assert model[0].weight.grad is not None


def test_a_real_batch_after_an_independent_one():
    """The first is walked without gradients; the second differentiates by its seeds, past the same tables."""
    batch = torch.randn(12, 20, generator=torch.Generator().manual_seed(0))
    alone = ns.predict(net(), (20,), batch=batch)
    ns.predict(net(), (20,))
    assert ns.predict(net(), (20,), batch=batch).lambda_max == alone.lambda_max


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("given", [False, True])
def test_the_mode_outside_changes_nothing(mode, given):
    batch = torch.randn(12, 20, generator=torch.Generator().manual_seed(0)) if given else None
    model = ns.models.MLP(20, 5, width=40, norm="batch")
    found = ns.predict(model, (20,), batch=batch)
    with mode():
        inside = ns.predict(model, (20,), batch=batch)
    assert inside.to_json() == found.to_json()


def test_imports_are_hidden_from_the_collector_once(monkeypatch):
    hidden = gc.get_freeze_count()
    with at_once():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == hidden
    monkeypatch.delitem(sys.modules, "torch")
    try:
        with at_once():
            pass
        assert gc.get_freeze_count() > hidden
        assert gc.isenabled()
    finally:
        gc.unfreeze()
