"""The kind of a loss in a Monitor: found at the first snapshot, from outputs, without a trace."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.losses import half_mse
from normscope.monitor import Monitor

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (12,), generator=torch.Generator().manual_seed(1))


def own(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y)


def squares(z: Tensor, y: Tensor) -> Tensor:
    return (z - F.one_hot(y, 3)).square().sum(1).mean()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


def trained(loss_fn: object, steps: int = 3, **options: object) -> tuple[nn.Module, Monitor | None]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    monitor = Monitor(model, loss_fn, every=1, budget=None, on_error="raise", **options) if options else None
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_fn(model(X), Y).backward()  # type: ignore[operator]
        if monitor is not None:
            monitor.step(X, Y, optimizer)
        optimizer.step()
    return model, monitor


@pytest.mark.parametrize(
    ("loss_fn", "kind"),
    [(own, "cross_entropy"), (squares, "squared"), (nn.MultiMarginLoss(), "other"), (half_mse, "squared")],
)
@pytest.mark.parametrize("measure", ["light", "standard"])
def test_the_first_snapshot_tells(loss_fn: object, kind: str, measure: str) -> None:
    before = Monitor(net(), loss_fn).settings()["loss"]  # type: ignore[arg-type]
    assert before == ("squared" if loss_fn is half_mse else "unknown")
    plain, _ = trained(loss_fn)
    model, monitor = trained(loss_fn, measure=measure)
    assert monitor is not None
    assert monitor.settings()["loss"] == kind
    said = [note for note in monitor.notes if "neither cross-entropy nor squared error" in note]
    assert len(said) == (kind == "other")
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), model.state_dict().values(), strict=True))


def test_a_forward_of_ones_own_gives_no_outputs() -> None:
    model = net()
    monitor = Monitor(model, forward=lambda model, batch: own(model(batch[0]), batch[1]), every=1, on_error="raise")
    own(model(X), Y).backward()
    monitor.step((X, Y), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert monitor.settings()["loss"] == "other"
    assert any("forward= gives the loss, and no predictions" in note for note in monitor.notes)


def test_targets_that_are_all_ignored_leave_it_open() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ignored = torch.full_like(Y, -100)

    def sums(z: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(z, y, reduction="sum")

    monitor = Monitor(model, sums, every=1, budget=None, on_error="raise", measure=["health"])
    for y, kind in ((ignored, "other"), (Y, "cross_entropy"), (ignored, "cross_entropy")):
        sums(model(X), y).backward()
        monitor.step(X, y, optimizer)
        assert monitor.settings()["loss"] == kind


def test_it_is_found_once_and_by_one_forward() -> None:
    model, passes = net(), 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    model.register_forward_hook(count)
    seen = []
    for loss_fn in (F.cross_entropy, own):
        monitor = Monitor(model, loss_fn, every=1, budget=None, on_error="raise", measure=["health"])
        for _ in range(2):
            passes = 0
            monitor.step(X, Y, lr=0.1)
            seen.append(passes)
    assert seen == [1, 1, 2, 1]
