"""A snapshot that the budget does not allow is made later, not left out."""

import torch
from torch import nn

from normscope.monitor import Monitor


def test_looks_that_were_put_off_are_made_up_for(monkeypatch) -> None:
    model = nn.Linear(3, 1)
    monitor = Monitor(model, nn.functional.mse_loss, every=[0, 3, 5], measure=["landscape"], on_error="raise")
    allowed = iter([True, False, False, False, True])
    monkeypatch.setattr(monitor._budget, "allows", lambda: next(allowed))
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    for _ in range(40):
        monitor.step(x, y, lr=0.1)
    assert [record.step for record in monitor.records] == [0, 20]
    assert "postponed 2 of 3 snapshots due" in monitor.notes[-1]
