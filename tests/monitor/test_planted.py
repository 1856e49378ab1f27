"""Mistakes planted in the library, one at a time: the comparison that is there for it must fail."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from situations import (
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
from torch import Tensor, nn

from normscope.isolation.batch_loss import BatchLoss
from normscope.isolation.generators import Generators
from normscope.isolation.lending import Lent
from normscope.isolation.module_calls import CallTrace, Replay
from normscope.monitor import ActivationProbe, CriticalProbe, HealthProbe, LandscapeProbe, ShiftProbe
from normscope.monitor.probes import covariate_shift
from normscope.monitor.probes.health import HealthProbe as Health
from normscope.monitor.snapshot import Snapshot

Patch = pytest.MonkeyPatch


def _landscape(s: Situation) -> None:
    compare_landscape(s, s.snapshot(LandscapeProbe((0.5, 4.0))).results["landscape"])


def _shift(s: Situation) -> None:
    compare_shift(s, s.snapshot(ShiftProbe()).results["shift"])


def _critical(s: Situation) -> None:
    compare_critical(s, s.snapshot(CriticalProbe("gradient")).results["critical"], rtol=0.5)


def _activations(s: Situation) -> None:
    found = s.snapshot(ActivationProbe()).results["activations"]
    now = compare_moments(s, found)
    compare_changes(found, now, None, now)


def _health(s: Situation) -> None:
    compare_health(s, s.snapshot(HealthProbe()).results["health"])


def _untouched(s: Situation) -> None:
    compare_untouched(s, LandscapeProbe(), ShiftProbe(), HealthProbe())


def one_buffer_is_not_copied(patch: Patch) -> None:
    instead = Lent._instead

    def skip(self: Lent, place: Any, lent: dict[int, Tensor]) -> Any:
        return None if place.key == "running_mean" else instead(self, place, lent)

    patch.setattr(Lent, "_instead", skip)


def buffers_are_not_reset_between_passes(patch: Patch) -> None:
    patch.setattr(Lent, "reset", lambda self: self.generators.restore())


def steps_go_up_the_gradient(patch: Patch) -> None:
    patch.setattr(
        Snapshot, "descent", property(lambda self: [g * r for g, r in zip(self.gradient, self.rates, strict=True)])
    )


def one_rate_serves_all_groups(patch: Patch) -> None:
    patch.setattr(Snapshot, "rates", property(lambda self: [0.03] * len(self.theta)))


def passes_are_made_in_eval_mode(patch: Patch) -> None:
    start = BatchLoss.__init__

    def evaluate(self: BatchLoss, task: Any, lent: Any, batch: Any) -> None:
        start(self, dataclasses.replace(task, loss=lambda model, batch: task.loss(model.eval(), batch)), lent, batch)

    patch.setattr(BatchLoss, "__init__", evaluate)


def draws_differ_between_passes(patch: Patch) -> None:
    patch.setattr(Generators, "restore", lambda self, states=None: None)


def biases_and_gammas_are_not_updated(patch: Patch) -> None:
    uses = covariate_shift._first_uses

    def matrices(snapshot: Snapshot) -> list[int]:
        return [10**9 if leaf.ndim == 1 else use for leaf, use in zip(snapshot.theta, uses(snapshot), strict=True)]

    patch.setattr(covariate_shift, "_first_uses", matrices)


def the_prefix_is_remembered_from_before_the_update(patch: Patch) -> None:
    replay = Snapshot.replay

    def stale(self: Snapshot) -> Replay:
        found = replay(self)
        self.at.move_to(self.theta)
        self.at.value(found.before(10**9))
        return found

    patch.setattr(Snapshot, "replay", stale)


def the_optimizers_state_is_forgotten(patch: Patch) -> None:
    patch.setattr(
        Snapshot, "after", lambda self, update: [t + d for t, d in zip(self.theta, self.descent, strict=True)]
    )


def the_gradient_is_taken_afresh(patch: Patch) -> None:
    def plain(self: Snapshot, update: str) -> list[Tensor]:
        kept = [p.grad for p in self.at.lent.originals]
        for p, g in zip(self.at.lent.originals, self.gradient, strict=True):
            p.grad = g
        found = self._after_optimizer_step
        for p, grad in zip(self.at.lent.originals, kept, strict=True):
            p.grad = grad
        return found

    patch.setattr(Snapshot, "after", plain)


def writers_get_the_memory_itself(patch: Patch) -> None:
    patch.setattr(Replay, "_private", lambda self, name, output: output)


def repeated_layers_are_answered_from_memory(patch: Patch) -> None:
    following = CallTrace.following

    class Once(set):  # type: ignore[type-arg]
        def add(self, item: object) -> None:
            pass

    def once(self: CallTrace, model: nn.Module) -> Any:
        self.repeated = Once()
        return following(self, model)

    patch.setattr(CallTrace, "following", once)


def shared_weights_are_answered_from_memory(patch: Patch) -> None:
    before = Replay.before

    def later(self: Replay, start: int) -> Any:
        return before(self, max(start, self._trace.starts["other"]) if start == self._trace.starts["one"] else start)

    patch.setattr(Replay, "before", later)


def the_watched_pass_moves_the_running_statistics(patch: Patch) -> None:
    measure = Health.measure

    def late(self: Health, snapshot: Snapshot) -> Any:
        _ = snapshot.loss
        snapshot.at.lent.reset = lambda: None  # type: ignore[method-assign]
        return measure(self, snapshot)

    patch.setattr(Health, "measure", late)


PLANTED: list[tuple[Callable[[Patch], None], tuple[str, str, str], Callable[[Situation], None]]] = [
    (one_buffer_is_not_copied, ("mlp", "batch", "momentum"), _untouched),
    (buffers_are_not_reset_between_passes, ("mlp", "noisy", "momentum"), _landscape),
    (steps_go_up_the_gradient, ("mlp", "none", "momentum"), _landscape),
    (steps_go_up_the_gradient, ("mlp", "none", "momentum"), _critical),
    (one_rate_serves_all_groups, ("mlp", "batch", "groups"), _landscape),
    (passes_are_made_in_eval_mode, ("mlp", "batch", "momentum"), _landscape),
    (passes_are_made_in_eval_mode, ("mlp", "batch", "momentum"), _shift),
    (passes_are_made_in_eval_mode, ("mlp", "batch", "momentum"), _activations),
    (draws_differ_between_passes, ("weird", "none", "momentum"), _landscape),
    (draws_differ_between_passes, ("weird", "none", "momentum"), _shift),
    (biases_and_gammas_are_not_updated, ("mlp", "batch", "momentum"), _shift),
    (the_prefix_is_remembered_from_before_the_update, ("mlp", "none", "momentum"), _shift),
    (the_optimizers_state_is_forgotten, ("mlp", "none", "momentum"), _shift),
    (the_optimizers_state_is_forgotten, ("mlp", "none", "adam"), _shift),
    (the_gradient_is_taken_afresh, ("mlp", "none", "momentum"), _shift),
    (writers_get_the_memory_itself, ("weird", "none", "momentum"), _shift),
    (repeated_layers_are_answered_from_memory, ("weird", "none", "momentum"), _shift),
    (shared_weights_are_answered_from_memory, ("weird", "none", "momentum"), _shift),
    (the_watched_pass_moves_the_running_statistics, ("mlp", "batch", "momentum"), _health),
]


@pytest.mark.parametrize(
    ("plant", "cell", "compare"),
    PLANTED,
    ids=[f"{plant.__name__}-{compare.__name__[1:]}" for plant, _, compare in PLANTED],
)
def test_the_comparison_goes_red(
    plant: Callable[[Patch], None],
    cell: tuple[str, str, str],
    compare: Callable[[Situation], None],
    monkeypatch: Patch,
) -> None:
    s = situation(*cell)
    if plant is the_gradient_is_taken_afresh:
        torch.nn.utils.clip_grad_norm_(s.model.parameters(), 0.01)
    compare(s)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        compare(s)
