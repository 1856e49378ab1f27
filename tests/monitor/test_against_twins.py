"""Every measurement beside its slow twin, on networks that are hard to follow."""

from typing import Any

import pytest
import torch
from situations import (
    NETWORKS,
    OPTIMIZERS,
    Checkpointed,
    Situation,
    compare_changes,
    compare_critical,
    compare_health,
    compare_landscape,
    compare_moments,
    compare_shift,
    compare_untouched,
    situation,
)

import reference
from normscope.losses import half_mse
from normscope.monitor import ActivationProbe, CriticalProbe, HealthProbe, LandscapeProbe, Monitor, ShiftProbe

NORMS = ("none", "batch", "noisy", "l1", "layer", "group")
FAST = {
    *(("mlp", norm, "momentum") for norm in NORMS),
    *(("weird", norm, "adam") for norm in NORMS),
    ("mlp", "batch", "adam"),
    ("mlp", "batch", "groups"),
    ("weird", "batch", "groups"),
    ("weird", "noisy", "momentum"),
    ("dln", "batch", "momentum"),
    ("dln", "none", "groups"),
    ("vgg11", "batch", "momentum"),
    ("resnet", "noisy", "adam"),
    ("sequences", "layer", "adam"),
    ("sequences", "layer", "groups"),
}
CELLS = [
    pytest.param(*cell, marks=() if cell in FAST else pytest.mark.slow, id="-".join(cell))
    for cell in ((n, norm, o) for n in NETWORKS for norm in NORMS for o in OPTIMIZERS)
    if cell[0] != "sequences" or cell[1] == "layer"
]


def _all(s: Situation, update: str) -> None:
    record = s.snapshot(
        LandscapeProbe((0.5, 1, 4)), ShiftProbe(update=update), ActivationProbe(), HealthProbe(), CriticalProbe(update)
    )
    found: dict[str, Any] = record.results
    compare_landscape(s, found["landscape"])
    compare_shift(s, found["shift"])
    now = compare_moments(s, found["activations"])
    compare_changes(found["activations"], now, None, now)
    compare_health(s, found["health"])
    assert record.loss == found["landscape"].loss


@pytest.mark.parametrize(("network", "norm", "optimizer"), CELLS)
def test_all_at_once(network: str, norm: str, optimizer: str) -> None:
    _all(situation(network, norm, optimizer), "optimizer")


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("norm", ["batch", "noisy"])
def test_a_look_leaves_no_trace(network: str, norm: str) -> None:
    probes = (LandscapeProbe(), ShiftProbe(), ActivationProbe(), HealthProbe(), CriticalProbe())
    compare_untouched(situation(network, norm, "adam"), *probes)


@pytest.mark.parametrize("network", ["mlp", "weird", "sequences"])
def test_shift_of_the_plain_gradient_step(network: str) -> None:
    for optimizer in ("momentum", "groups"):
        s = situation(network, "batch", optimizer)
        compare_shift(s, s.snapshot(ShiftProbe(update="gradient")).results["shift"])


@pytest.mark.parametrize(("network", "norm"), [("mlp", "batch"), ("weird", "noisy"), ("sequences", "layer")])
@pytest.mark.parametrize("every", [1, 3])
def test_activations_over_several_steps(network: str, norm: str, every: int) -> None:
    """Changes are from one training step to the next, also where snapshots are further apart; drifts from the first."""
    s = situation(network, norm, "momentum")
    monitor = Monitor(s.model, s.loss_fn, every=every, measure=[ActivationProbe()], budget=None, on_error="raise")
    seen: list[Any] = []
    for step in range(5):
        s.backward()
        record = monitor.step(s.x, s.y, s.optimizer)
        now = reference.activation_moments(s.model, s.optimizer, s.loss)
        assert (record is not None) == (step % every in (0, 1))
        if record is not None:
            compare_moments(s, record.results["activations"])
            before = None if step % every == 0 and (every > 1 or step == 0) else seen[-1]
            compare_changes(record.results["activations"], now, before, seen[0] if seen else now)
        seen.append(now)
        s.optimizer.step()
        s.x = torch.randn_like(s.x)


_QUICK = {("mlp", "batch", "adam"), ("mlp", "none", "groups"), ("weird", "noisy", "momentum")}
_CRITICAL = [
    pytest.param(*cell, marks=() if cell in _QUICK else pytest.mark.slow, id="-".join(cell))
    for network, norm in (
        ("mlp", "none"),
        ("mlp", "batch"),
        ("weird", "noisy"),
        ("dln", "none"),
        ("sequences", "layer"),
    )
    for optimizer in OPTIMIZERS
    for cell in [(network, norm, optimizer)]
]


@pytest.mark.parametrize(("network", "norm", "optimizer"), _CRITICAL)
def test_critical_step_is_the_first_crossing(network: str, norm: str, optimizer: str) -> None:
    """A search of eight passes, most of them for the scale at the first snapshot; 1 % once that is known."""
    s = situation(network, norm, optimizer)
    for update in ("gradient", "optimizer"):
        probe = CriticalProbe(update)
        compare_critical(s, s.snapshot(probe).results["critical"], rtol=0.5)
        compare_critical(s, s.snapshot(probe).results["critical"], rtol=1e-2)


def _accumulated(s: Situation) -> None:
    for _ in range(2):
        s.x = torch.randn_like(s.x)
        (s.loss(s.model) / 3).backward()


def _clipped(s: Situation) -> None:
    norm = torch.nn.utils.clip_grad_norm_(s.model.parameters(), 0.01)
    assert norm > 0.1


@pytest.mark.parametrize("change", [_accumulated, _clipped])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_update_is_made_of_the_gradient_that_the_optimizer_will_use(change: Any, optimizer: str) -> None:
    s = situation("weird", "batch", optimizer)
    plain = s.snapshot(ShiftProbe()).results["shift"]
    change(s)
    record = s.snapshot(ShiftProbe(), LandscapeProbe((1.0,)), CriticalProbe())
    compare_shift(s, record.results["shift"])
    compare_critical(s, record.results["critical"], rtol=0.5)
    # The landscape is this batch's own.
    compare_landscape(s, record.results["landscape"])
    s.backward()
    assert s.snapshot(ShiftProbe()).results["shift"].shifts != record.results["shift"].shifts
    assert plain.shifts != record.results["shift"].shifts


def test_a_scaled_gradient_is_divided_by_its_scale() -> None:
    s = situation("mlp", "batch", "adam")
    wanted = s.snapshot(ShiftProbe(), CriticalProbe()).results
    for p in s.model.parameters():
        assert p.grad is not None
        p.grad.mul_(1024.0)
    monitor = Monitor(
        s.model, s.loss_fn, every=1, measure=[ShiftProbe(), CriticalProbe()], budget=None, on_error="raise"
    )
    record = monitor.step(s.x, s.y, s.optimizer, scale=1024.0)
    assert record is not None
    assert record.results == wanted  # a power of two: to the bit


def _checkpointed(norm: str, use: bool, reentrant: bool = False) -> Situation:
    torch.manual_seed(5)
    model = Checkpointed(norm, use, reentrant).double()
    x, y = torch.randn(10, 6, dtype=torch.float64), torch.randn(10, 3, dtype=torch.float64)
    s = Situation(model, torch.optim.Adam(model.parameters(), lr=0.01), half_mse, x, y)
    s.backward()
    s.optimizer.step()
    s.backward()
    return s


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("norm", ["none", "batch", "noisy"])
def test_activation_checkpointing_changes_no_measurement(norm: str, reentrant: bool) -> None:
    plain, s = _checkpointed(norm, False), _checkpointed(norm, True, reentrant)
    # Training with it tracks running statistics twice a step, so the two are made equal here.
    s.model.load_state_dict(plain.model.state_dict())
    state = torch.get_rng_state()
    records = []
    for one in (plain, s):
        torch.set_rng_state(state)
        records.append(
            one.snapshot(LandscapeProbe((1.0, 4.0)), ShiftProbe(), ActivationProbe(), HealthProbe(), CriticalProbe())
        )
    for name, wanted in records[0].results.items():
        assert repr(records[1].results[name]) == repr(wanted)  # to the bit, nan included
    torch.set_rng_state(state)
    compare_shift(s, records[1].results["shift"])
    compare_landscape(s, records[1].results["landscape"])
