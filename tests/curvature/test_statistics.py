"""Statistics modes: all that differs between them follows from their entries."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from normscope import losses, measure
from normscope.curvature.operators import statistics
from normscope.curvature.operators.statistics import (
    MODES,
    StatisticsMode,
    differentiable,
    over_the_batch,
    statistics_mode,
)

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randn(12, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    for _ in range(3):
        net(X)
    return net


def test_a_statistics_mode_is_one_entry(model, monkeypatch):
    """A fourth mode: the running statistics, doubled variance. Its eigenvalue is that of a model with these values."""

    @contextmanager
    def doubled(net):
        with MODES["running"].entered(net):
            norm = net[1]
            variance = norm.running_var.clone()
            norm.running_var.mul_(2)
            yield
            norm.running_var.copy_(variance)

    monkeypatch.setitem(statistics.MODES, "doubled", StatisticsMode(doubled, of_the_batch=False, differentiated=False))
    found = measure(model, losses.half_mse, (X, Y), stats="doubled", compare=("running",))
    model[1].running_var.mul_(2)
    expected = measure(model, losses.half_mse, (X, Y), stats="running")
    assert found.lambda_max == pytest.approx(expected.lambda_max, rel=1e-6)
    assert found.by_statistics["running"] != pytest.approx(expected.lambda_max, rel=1e-2)
    assert any("critical rate is measured with stats='batch'" in note for note in found.notes)


def test_what_follows_from_the_entries():
    assert [name for name, mode in MODES.items() if mode.as_trained] == ["batch"]
    assert [name for name, mode in MODES.items() if mode.holds_the_batch] == ["frozen"]
    assert [differentiable(name) for name in MODES] == ["batch", "batch", "running"]
    assert [list(over_the_batch(nn.BatchNorm1d(2), name)) for name in MODES] == [[""], [""], []]


def test_a_mode_that_is_not_there_is_refused_by_name():
    with pytest.raises(ValueError, match=r"stats.*eval"):
        statistics_mode(nn.BatchNorm1d(2), "eval")
