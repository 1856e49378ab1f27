"""Networks and optimizers that people have and that a measurement could trip over, beside the slow twins."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from situations import (
    Situation,
    compare_health,
    compare_landscape,
    compare_moments,
    compare_shift,
    compare_untouched,
)
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.losses import half_mse
from normscope.monitor import ActivationProbe, CriticalProbe, HealthProbe, LandscapeProbe, Monitor, ShiftProbe


def _all() -> list[Any]:
    return [LandscapeProbe((0.5, 2.0)), ShiftProbe(), ActivationProbe(), HealthProbe(), CriticalProbe()]


class ByName(nn.Module):
    """Hands arguments over by name."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(input=self.norm(input=self.a(input=x)))
        return y


class Detached(nn.Module):
    """A trainable part that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.c = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.norm(self.a(x))
        y: Tensor = self.c(torch.tanh(self.b(h)))
        return y


class Holding(nn.Module):
    """Writes into tensors that it keeps in a list and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 3)
        self.kept, self.named = [torch.zeros((), dtype=torch.float64)], {"n": torch.zeros((), dtype=torch.float64)}

    def forward(self, x: Tensor) -> Tensor:
        self.kept[0].add_(0.1)
        self.named["n"].add_(0.1)
        y: Tensor = self.b(torch.tanh(self.a(x) + self.kept[0])) * self.named["n"]
        return y


class Tokens(nn.Module):
    """An embedding whose matrix is the output's too, used without calling a module."""

    def __init__(self, sparse: bool = False, tied: bool = True) -> None:
        super().__init__()
        self.embed, self.norm, self.b = nn.Embedding(9, 6, sparse=sparse), nn.LayerNorm(6), nn.Linear(6, 6)
        self.out, self.tied = nn.Linear(9 if tied else 6, 3), tied

    def forward(self, x: Tensor) -> Tensor:
        h = self.b(self.norm(self.embed((3 * x).long().clamp(0, 8))))
        y: Tensor = self.out((F.linear(h, self.embed.weight) if self.tied else h).mean(1))
        return y


class InPlaceInput(nn.Module):
    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.change, self.a = change, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.change(x)
        y: Tensor = self.a(x)
        return y


class OwnAttention(nn.MultiheadAttention):
    """A subclass; its child `out_proj` is never called, only its weight is used."""


class Uncalled(nn.Module):
    """Takes weights out of modules that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention = nn.Linear(3, 4), OwnAttention(4, 2, batch_first=True)
        self.inner = nn.ModuleDict({"qkv": nn.Linear(4, 4), "norm": nn.LayerNorm(4)})
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.unflatten(1, (2, 3)))
        h = self.attention(h, h, h, need_weights=False)[0]
        h = self.inner["norm"](F.linear(h, self.inner["qkv"].weight, self.inner["qkv"].bias))
        y: Tensor = self.out(h.mean(1))
        return y


class Gate(nn.Module):
    """A leaf that leaves something behind for others, beside its output."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 6))

    def forward(self, x: Tensor) -> Tensor:
        h = x @ self.weight.T
        self.size = h.square().mean(1, keepdim=True)
        return torch.tanh(h)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.b, self.c = Gate(), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.b(self.gate(x))
        y: Tensor = self.c(torch.relu(h) * self.gate.size)
        self.gate.size = None
        return y


class Momentum(nn.Module):
    """A second encoder that follows the first inside the forward."""

    def __init__(self, rebinds: bool) -> None:
        super().__init__()
        self.query, self.key, self.out = nn.Linear(6, 5), nn.Linear(6, 5).requires_grad_(False), nn.Linear(5, 3)
        self.rebinds = rebinds

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for q, k in zip(self.query.parameters(), self.key.parameters(), strict=True):
                if self.rebinds:
                    k.data = 0.9 * k.data + 0.1 * q.data
                else:
                    k.data.mul_(0.9).add_(q, alpha=0.1)
        y: Tensor = self.out(torch.tanh(self.query(x)) * torch.tanh(self.key(x)))
        return y


class Bidirectional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.b = nn.GRU(6, 4, 2, bidirectional=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.rnn(x[None])[0][0])
        return y


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def _convolutions() -> nn.Module:
    norm = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    return nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 4, 2), norm, nn.Flatten(), nn.Linear(8, 3))


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def _situation(model: nn.Module, make: Callable[[nn.Module], torch.optim.Optimizer] = _sgd) -> Situation:
    torch.manual_seed(2)
    model.double()
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    s = Situation(model, make(model), half_mse, x, y)
    s.backward()
    s.optimizer.step()
    s.backward()
    return s


def _compare(s: Situation) -> None:
    record = s.snapshot(*_all())
    compare_landscape(s, record.results["landscape"])
    compare_shift(s, record.results["shift"])
    compare_moments(s, record.results["activations"])
    compare_health(s, record.results["health"])
    compare_untouched(s, *_all())


@pytest.mark.parametrize(
    "build",
    [ByName, Detached, Holding, Tokens, lambda: Tokens(True, False), Uncalled, Gated, Bidirectional, _convolutions],
    ids=[
        "by-name",
        "detached",
        "holding",
        "tied-tokens",
        "sparse-tokens",
        "uncalled",
        "left-behind",
        "gru",
        "instance",
    ],
)
def test_networks(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(1)
    _compare(_situation(build()))


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "amsgrad": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, amsgrad=True),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01, centered=True),
    "rate-is-a-tensor": lambda m: torch.optim.Adam(m.parameters(), lr=torch.tensor(0.01, dtype=torch.float64)),
    "fused": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, fused=True),
    "nesterov": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, nesterov=True),
    "head-only": lambda m: torch.optim.SGD(m[3].parameters(), lr=0.01),  # type: ignore[index]
    "matrices-only": lambda m: torch.optim.SGD([p for p in m.parameters() if p.ndim > 1], lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    torch.manual_seed(1)
    _compare(_situation(_plain(), OPTIMIZERS[name]))


def test_a_schedule_that_wraps_the_step() -> None:
    torch.manual_seed(1)
    s = _situation(_plain())
    schedule = torch.optim.lr_scheduler.StepLR(s.optimizer, 1, 0.5)
    s.optimizer.step()
    schedule.step()
    s.backward()
    assert s.snapshot(LandscapeProbe()).results["landscape"].lr == 0.005
    compare_shift(s, s.snapshot(ShiftProbe()).results["shift"])
    compare_untouched(s, *_all())
    assert schedule.last_epoch == 1


def test_modules_in_eval_mode_stay_in_it() -> None:
    torch.manual_seed(1)
    s = _situation(_plain())
    s.model[1].eval()  # type: ignore[index]
    s.backward()
    _compare(s)


def test_a_forward_that_changes_the_batch_is_said_and_the_batch_kept() -> None:
    torch.manual_seed(1)
    s = _situation(InPlaceInput(lambda x: x.sub_(0.1)))
    before = s.x.clone()
    with pytest.raises(ValueError, match="changes the batch in place"):
        s.snapshot(LandscapeProbe())
    assert torch.equal(s.x, before)


def test_a_change_that_changes_nothing_more_is_allowed() -> None:
    torch.manual_seed(1)
    _compare(_situation(InPlaceInput(lambda x: x.relu_())))


def test_some_layers_are_measured_as_all_of_them_are() -> None:
    torch.manual_seed(1)
    s = _situation(nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)), nn.Linear(6, 3)))
    every = s.snapshot(ShiftProbe()).by_layer()
    some = s.snapshot(ShiftProbe(layers=["4", "1"])).by_layer()
    assert list(some) == ["1", "4"]
    assert some == {name: every[name] for name in some}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_called_where_gradients_are_off(mode: Callable[[], Any]) -> None:
    torch.manual_seed(1)
    s = _situation(_plain())
    wanted = s.snapshot(*_all())
    with mode():
        s.x = s.x.clone()
        found = s.snapshot(*_all())
    assert repr(found.results) == repr(wanted.results)


class Centred(nn.Module):
    """A loss with a running centre, a counter and a noise of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3, dtype=torch.float64))
        self.calls = 0

    def forward(self, output: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        self.centre.mul_(0.5).add_(output.detach().mean(0))
        return half_mse(output - self.centre + 0.01 * torch.randn_like(output), y)


def test_a_loss_that_keeps_state_keeps_it() -> None:
    x, y = torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)
    model, loss_fn = ByName().double(), Centred()
    loss_fn(model(x), y).backward()
    centre, calls, state = loss_fn.centre.clone(), loss_fn.calls, torch.get_rng_state()
    monitor = Monitor(model, loss_fn, every=1, measure=_all(), budget=None, on_error="raise")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0625)
    first, again = (monitor.step(x, y, optimizer) for _ in range(2))
    assert first is not None
    assert again is not None
    assert first.results["landscape"] == again.results["landscape"]
    assert torch.equal(loss_fn.centre, centre)
    assert loss_fn.calls == calls
    assert torch.equal(torch.get_rng_state(), state)


def test_a_forward_that_takes_its_labels_out_of_the_batch() -> None:
    def forward(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        y = batch.pop("y")
        return half_mse(model(**batch), y)

    batch = {"x": torch.randn(8, 6), "y": torch.randn(8, 3)}
    model = ByName()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    forward(model, dict(batch)).backward()
    monitor = Monitor(model, forward=forward, every=1, measure=_all(), budget=None, on_error="raise")
    record = monitor.step(batch, optimizer=optimizer)
    assert record is not None
    assert len(record.results) == 5
    assert set(batch) == {"x", "y"}
