"""Sweeps on this machine: outcomes, stacked and looped, out of memory, resumed, refined."""

import math

import numpy as np
import pytest
import sweep_plans as small
import torch

import normscope as ns
from normscope.sweeping import Cell, Journal
from normscope.sweeping import trainer as trainer_module
from normscope.sweeping.outcome import divergence, outcome, settling
from normscope.sweeping.stacked_step import Program
from normscope.sweeping.trainer import Trainer
from normscope.sweeping.unstacked import train_alone


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The plan's sweep, uninterrupted."""
    return ns.sweep(small.plan(), tmp_path_factory.mktemp("whole"), device="cpu", quiet=True)


def test_a_sweep_trains_every_cell_once(whole):
    plan = small.plan()
    assert [found.cell for found in whole.outcomes] == sorted(plan.cells())
    assert {found.mode for found in whole.outcomes} == {"stacked"}
    for found in whole.outcomes:
        curves = np.array([found.train_loss, found.test_loss, found.train_accuracy, found.test_accuracy])
        assert curves.shape == (4, 2)
        assert np.isfinite(curves).all() == found.survived
    frame = whole.frame()
    assert len(frame) == 24
    assert frame["diverged_at"].notna().any()
    assert frame["diverged_at"].isna().any()


def test_an_outcome_is_that_of_the_plain_loop(whole):
    """normscope.train, which knows nothing of sweeps, on the same network and batches."""
    plan, data = small.plan(), ns.data.digits(seed=0)
    for cell in (Cell(plan.learning_rates[1], 2.0, 1), Cell(plan.learning_rates[-1], 0.5, 0)):
        model = ns.models.MLP(64, 10, width=16, depth=3, norm="batch", gamma=cell.value, seed=cell.seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=cell.lr, momentum=0.9)
        batches = ns.data.batches(data.x_train, data.y_train, batch_size=128, seed=0, epochs=2)
        run = ns.train(model, ns.losses.half_mse, batches, optimizer)
        (found,) = (found for found in whole.outcomes if found.cell == cell)
        assert found.diverged_at == run.diverged_at
        assert found.initial_loss == pytest.approx(run.losses[0], rel=1e-5)
        if found.survived:
            assert found.train_loss[0] == pytest.approx(np.mean(run.losses[:11]), rel=1e-3)
            model.eval()
            with torch.no_grad():
                test = ns.losses.half_mse(model(data.x_test), data.y_test)
            assert found.test_loss[-1] == pytest.approx(float(test), rel=1e-2)


def test_stacked_and_looped_agree_in_float64_and_in_who_survives():
    plan = small.plan(dtype="float64")
    trainer = Trainer(plan)
    (stacked,) = trainer.train(plan.cells())
    for found in stacked:
        twin = train_alone(trainer, found.cell, "", lambda done: None)
        assert (found.diverged_at, found.rose_at) == (twin.diverged_at, twin.rose_at)
        np.testing.assert_allclose(found.train_loss, twin.train_loss, rtol=1e-9)
        np.testing.assert_allclose(found.test_loss, twin.test_loss, rtol=1e-9)
        np.testing.assert_allclose(found.test_accuracy, twin.test_accuracy)
        np.testing.assert_allclose(found.train_accuracy, twin.train_accuracy)


def test_survival_in_float32_is_that_of_networks_alone_away_from_the_boundary():
    plan = small.plan()
    trainer = Trainer(plan)
    (stacked,) = trainer.train(plan.cells())
    edges = {edge.value: edge for edge in ns.sweeping.boundary.edges(stacked)}
    compared = 0
    for found in stacked:
        apart = abs(math.log10(found.cell.lr / edges[found.cell.value].eta))
        if apart > 0.05:
            compared += 1
            assert train_alone(trainer, found.cell, "", lambda done: None).survived == found.survived
    assert compared == len(stacked)


@pytest.mark.parametrize("mode", ["stacked", "looped"])
def test_tested_after_the_last_epoch_alone(mode):
    """The same training and the same last test; no other epoch has one."""
    plan = small.plan(mode=mode, seeds=(0,))
    every, last = (next(Trainer(plan, every_epoch=each).train(plan.cells())) for each in (True, False))
    for one, other in zip(every, last, strict=True):
        assert one.diverged_at == other.diverged_at
        assert one.train_loss == pytest.approx(other.train_loss, abs=0, nan_ok=True)
        assert one.test_loss[-1] == pytest.approx(other.test_loss[-1], abs=0, nan_ok=True)
        assert one.test_accuracy[-1] == pytest.approx(other.test_accuracy[-1], abs=0, nan_ok=True)
        assert all(map(math.isnan, (*other.test_loss[:-1], *other.test_accuracy[:-1])))
    assert any(found.survived for found in last)


def test_dead_members_leave_the_stack(monkeypatch):
    plan = small.plan(learning_rates=(0.001, 1e4), epochs=2)
    sizes, step = [], Program.step

    def counted(self, members, *batch):
        sizes.append(len(members))
        return step(self, members, *batch)

    monkeypatch.setattr(Program, "step", counted)
    (found,) = Trainer(plan).train(plan.cells())
    dead = [one.diverged_at for one in found if not one.survived]
    assert 0 < len(dead) < len(found)
    assert sizes[0] == len(found)
    assert sizes[-1] == len(found) - len(dead)
    # Looked for every eighth step.
    assert sizes[max(dead) + 8] == sizes[-1]
    plan = small.plan(learning_rates=(1e4,), epochs=3)
    sizes.clear()
    (found,) = Trainer(plan).train(plan.cells())
    assert not any(one.survived for one in found)
    assert len(sizes) <= max(one.diverged_at for one in found) + 8


def test_a_run_again_trains_nothing(tmp_path, monkeypatch, whole):
    plan = small.plan()
    ns.sweep(plan, tmp_path, device="cpu", quiet=True)
    monkeypatch.setattr(trainer_module.Trainer, "train", lambda *_, **__: pytest.fail("trained again"))
    again = ns.sweep(plan, tmp_path, device="cpu", quiet=True)
    assert small.same(again, whole)


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path, monkeypatch):
    plan = small.plan()
    whole = ns.sweep(plan, tmp_path / "whole", device="cpu", quiet=True, group=5)
    train, groups = trainer_module.Trainer.train, []

    def interrupted(self, cells, **options):
        if len(groups) == 2:
            raise KeyboardInterrupt
        groups.append(list(cells))
        yield from train(self, cells, **options)

    monkeypatch.setattr(trainer_module.Trainer, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ns.sweep(plan, tmp_path, device="cpu", quiet=True, group=5)
    with Journal(tmp_path / "sweep.sqlite", readonly=True) as journal:
        kept = journal.outcomes(plan)
    assert set(kept) == {cell for group in groups for cell in group}
    monkeypatch.setattr(trainer_module.Trainer, "train", train)
    found = ns.sweep(plan, tmp_path, device="cpu", quiet=True, group=5)
    assert small.same(found, whole)
    with Journal(tmp_path / "sweep.sqlite") as journal:
        counters = journal.counters(plan)
    assert all(count.at_landing == count.by_now for count in counters.values())
    assert sum(count.by_now for count in counters.values()) == len(plan.cells()) + 5


def test_a_changed_plan_stands_beside_the_old_one(tmp_path):
    plans = [small.plan(learning_rates=(0.01,)), small.plan(learning_rates=(0.01,), momentum=0.5)]
    found = [ns.sweep(plan, tmp_path, device="cpu", quiet=True) for plan in plans]
    assert not small.same(*found)
    with Journal(tmp_path / "sweep.sqlite", readonly=True) as journal:
        assert set(journal.plans()) == {plan.hash for plan in plans}
        assert [len(journal.outcomes(plan)) for plan in plans] == [4, 4]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_out_of_memory_halves_the_group_and_the_sweep_completes(tmp_path, monkeypatch, whole, error):
    sizes = []
    step = trainer_module.train_stacked

    def limited(trainer, cells, size, advance):
        sizes.append(len(cells))
        if len(cells) > 7:
            raise error("CUDA out of memory: injected")
        return step(trainer, cells, size, advance)

    monkeypatch.setattr(trainer_module, "train_stacked", limited)
    found = ns.sweep(small.plan(), tmp_path, device="cpu", quiet=True)
    assert sizes == [24, 12, 6, 6, 12, 6, 6]
    assert small.same(found, whole)


def test_out_of_memory_with_one_member_is_an_error(monkeypatch):
    def none_fits(*_):
        raise torch.OutOfMemoryError("injected")

    monkeypatch.setattr(trainer_module, "train_stacked", none_fits)
    with pytest.raises(torch.OutOfMemoryError):
        list(Trainer(small.plan()).train(small.plan().cells()[:1]))


def test_group_size_follows_free_memory(monkeypatch):
    trainer = Trainer(small.plan())
    assert trainer.group_size(300) == 60
    monkeypatch.setattr(trainer_module, "_free_bytes", lambda device: 10 * trainer._model_bytes)
    assert trainer.group_size(300) == 7
    monkeypatch.setattr(trainer_module, "_free_bytes", lambda device: 0)
    assert trainer.group_size(300) == 1


def test_a_factory_that_cannot_be_stacked_is_looped_and_said(tmp_path):
    plan = small.plan(model="sweep_plans:branching", arguments={}, learning_rates=(0.001, 1e4))
    found = ns.sweep(plan, tmp_path, device="cpu", quiet=True)
    assert {one.mode for one in found.outcomes} == {"looped"}
    assert all("not stacked: 2 (_Branching)" in one.note for one in found.outcomes)
    assert {one.survived for one in found.outcomes} == {True, False}


def test_an_axis_that_no_stack_can_hold_is_looped_and_said(tmp_path):
    plan = small.plan(
        model="sweep_plans:with_dropout", axis="p", values=(0.0, 0.5), arguments={}, learning_rates=(0.01,)
    )
    found = ns.sweep(plan, tmp_path, device="cpu", quiet=True)
    assert all("2 (Dropout): p is" in one.note for one in found.outcomes)


def test_dropout_draws_alike_in_a_stack_and_alone():
    plan = small.plan(
        model="sweep_plans:with_dropout",
        axis="momentum",
        values=(0.0, 0.9),
        arguments={"p": 0.5},
        dtype="float64",
        learning_rates=(0.001, 0.01),
        stream_seed=3,
    )
    trainer = Trainer(plan)
    assert trainer.draws
    before = torch.get_rng_state()
    (stacked,) = trainer.train(plan.cells())
    assert torch.equal(before, torch.get_rng_state())
    for found in stacked:
        assert found.mode == "stacked"
        twin = train_alone(trainer, found.cell, "", lambda done: None)
        np.testing.assert_allclose(found.train_loss, twin.train_loss, rtol=1e-9)


def test_convolutions_on_a_cpu_train_one_at_a_time_unless_told_otherwise():
    options = {"model": "CNN", "learning_rates": (0.01,), "values": (1.0,), "epochs": 1}
    arguments = {"in_channels": 1, "size": 8, "channels": [4], "norm": "batch"}
    auto, told = (Trainer(small.plan(**options, arguments=arguments, mode=mode)) for mode in ("auto", "stacked"))
    assert (auto.mode, told.mode) == ("looped", "stacked")
    assert "CPU" in auto.note
    (one,), (other,) = (next(iter(trainer.train(trainer.plan.cells())))[:1] for trainer in (auto, told))
    assert one.train_loss == pytest.approx(other.train_loss, rel=1e-4)


def test_a_regression_has_no_accuracy(tmp_path):
    plan = small.plan(
        data="gaussian", learning_rates=(1e-3,), arguments={"d_in": 10, "width": 16, "norm": "batch"}, loss="half_sse"
    )
    found = ns.sweep(plan, tmp_path, device="cpu", quiet=True)
    assert all(math.isnan(one.test_accuracy[-1]) and one.test_loss[-1] > 0 for one in found.outcomes)


def test_bisection_encloses_the_boundary_and_agrees_with_the_grid(tmp_path, whole):
    refined = small.plan(bisect=0.02)
    found = ns.sweep(refined, tmp_path, device="cpu", quiet=True)
    for coarse, fine in zip(whole.boundary(), found.boundary(), strict=True):
        assert coarse.survives <= fine.survives < fine.diverges <= coarse.diverges
        assert 2 * fine.resolution <= 0.02 * (1 + 1e-6)
    assert len(found.outcomes) < 24 + 2 * 2 * 8
    again = ns.sweep(refined, tmp_path, device="cpu", quiet=True)
    assert small.same(found, again)


@pytest.mark.slow
def test_a_refinement_cut_off_between_seeds_ends_as_an_uninterrupted_one(tmp_path, monkeypatch):
    plan = small.plan(bisect=0.2, values=(2.0,), learning_rates=(0.01, 1.0), epochs=1)
    whole = ns.sweep(plan, tmp_path / "whole", device="cpu", quiet=True, group=1)
    assert len(whole.outcomes) > 4
    add = Journal.add
    for cut in range(5, len(whole.outcomes)):
        landed = []

        def limited(self, plan, outcomes, landed=landed, cut=cut):
            if len(landed) == cut:
                raise KeyboardInterrupt
            landed.append(outcomes)
            add(self, plan, outcomes)

        monkeypatch.setattr(Journal, "add", limited)
        with pytest.raises(KeyboardInterrupt):
            ns.sweep(plan, tmp_path / str(cut), device="cpu", quiet=True, group=1)
        monkeypatch.setattr(Journal, "add", add)
        assert small.same(ns.sweep(plan, tmp_path / str(cut), device="cpu", quiet=True, group=1), whole)


def test_settling_and_divergence():
    assert [settling(mu) for mu in (0.0, 0.5, 0.9, 0.99)] == [3, 3, 10, 100]
    assert divergence(np.array([1.0, 1e6, 2e6, np.nan]), 1e6) == 2
    assert divergence(np.array([1.0, np.inf]), 1e6) == 1
    assert divergence(np.array([np.nan, 1.0]), 1e6) == 0
    assert divergence(np.array([0.0, 1e9]), 1e6) is None
    assert divergence(np.array([-1.0, 5.0]), 1e6) is None


def test_an_epoch_in_which_a_run_diverged_has_no_mean():
    plan = small.plan(epochs=3, momentum=0.0)
    losses = np.array([1.0, 0.5, 0.4, 0.3, 1.2, 9e6])
    found = outcome(
        plan, plan.cells()[0], losses, losses, [(0.1, 0.2)] * 2, batch=1, mode="stacked", note="", environment={}
    )
    assert (found.diverged_at, found.rose_at) == (5, 4)
    assert found.train_loss[:2] == (0.75, 0.35)
    assert math.isnan(found.train_loss[2])
    assert found.test_loss[:2] == (0.1, 0.1)


@pytest.mark.slow
def test_a_compiled_sweep_gives_the_eager_ones_numbers(tmp_path, whole):
    found = ns.sweep(small.plan(compile="always"), tmp_path, device="cpu", quiet=True, group=10)
    assert {one.environment["compiled"] for one in found.outcomes} == {True}
    for one, twin in zip(found.outcomes, whole.outcomes, strict=True):
        assert one.diverged_at == twin.diverged_at
        np.testing.assert_allclose(one.test_loss, twin.test_loss, rtol=2e-2)
