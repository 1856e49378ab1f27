"""An engine rehearses stacks where it is asked to, and else one copy at a time, with the reason."""

import pytest
import torch
from test_rehearsal import stage_of
from test_stacked_rehearsal import NETWORKS, Roomy, described
from torch import nn
from torch.nn import functional as F
from trainings import same, setup, state

import normscope as ns
from normscope.tuning import engines
from normscope.tuning.engines import Local
from normscope.tuning.rehearsal import rehearse


@pytest.fixture
def stacking(monkeypatch):
    """`tune` rehearses stacks on the CPU too."""
    monkeypatch.setattr("normscope.tuning.tune_network.engine_named", lambda *_: Local(stacked=True))


@pytest.fixture
def counted(monkeypatch):
    """The rates of every stack that is rehearsed."""
    seen, real = [], engines.rehearse_stacked

    def spy(stage, rates, steps):
        seen.append(list(rates))
        return real(stage, rates, steps)

    monkeypatch.setattr(engines, "rehearse_stacked", spy)
    return seen


def test_on_a_cpu_copies_are_trained_one_at_a_time(counted):
    stage = stage_of(described("batchnorm"), steps=6)
    engine = Local()
    made = list(engine.run(stage, [0.1, 0.2], 6))
    assert (counted, engine.note) == ([], "")
    assert [each.losses for each in made] == [rehearse(stage, lr, 6).losses for lr in (0.1, 0.2)]


def test_one_rate_is_no_stack(counted):
    assert len(list(Local(stacked=True).run(stage_of(described("batchnorm")), [0.1], 6))) == 1
    assert counted == []


def test_tune_with_stacks_names_the_same_rate_at_the_same_cost(stacking, counted, monkeypatch):
    there = ns.tune(described("batchnorm"), steps=500)
    assert len(counted) == 1
    assert len(counted[0]) == 3
    monkeypatch.undo()
    here = ns.tune(described("batchnorm"), steps=500)
    assert there.lr == pytest.approx(here.lr, rel=1e-5)
    assert (there.notes, there.cost.passes_used, there.cost.passes_predicted) == (
        here.notes, here.cost.passes_used, here.cost.passes_predicted,
    )  # fmt: skip
    for one, other in zip(there.rehearsals, here.rehearsals, strict=True):
        assert one.losses == pytest.approx(other.losses, rel=1e-5)


def test_what_does_not_stack_is_tuned_one_at_a_time_and_said(stacking):
    described = setup()  # with dropout
    before = state(described)
    tuning = ns.tune(described, steps=500)
    assert same(state(described), before)
    (note,) = [note for note in tuning.notes if "one at a time" in note]
    assert note.startswith("The copies were trained one at a time, not as a stack: 3 (Dropout): ")


def test_a_stack_that_runs_out_of_memory_is_trained_one_at_a_time_and_its_passes_count(stacking):
    tuning = ns.tune(
        described(nn.Sequential(nn.Linear(6, 16), Roomy(after=1), nn.Linear(16, 3)), eval_batches=None), steps=500
    )
    assert any("not as a stack: a stack of the copies does not fit in memory." in note for note in tuning.notes)
    steps = tuning.settings["steps_of_a_rehearsal"]
    assert sorted(each.passes for each in tuning.rehearsals)[-2:] == [steps, steps + 3]
    assert tuning.cost.passes_used <= 50


def test_a_loss_computed_with_the_users_own_model_is_refused_in_a_stack(stacking):
    model = NETWORKS["none"]().double()
    own = described(model)

    def decayed(outputs, y):
        return F.cross_entropy(outputs, y) + 0.01 * sum(p.square().sum() for p in model.parameters())

    with pytest.raises(ValueError, match="the model it was written beside"):
        ns.tune(ns.Setup(model, decayed, own.batches, own.optimizer), steps=500)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), AssertionError()])
def test_errors_of_the_users_code_show_as_without_a_stack(stacking, error, after):
    calls = []

    def wrong(outputs, y):
        calls.append(y)
        if len(calls) > after:
            raise error
        return F.cross_entropy(outputs, y)

    with pytest.raises(type(error)) as raised:
        ns.tune(described("none", loss_fn=wrong), steps=500)
    assert raised.value is error


def test_ctrl_c_ends_a_stack(stacking):
    def stop(outputs, y):
        raise KeyboardInterrupt

    described_ = described("none", loss_fn=stop)
    before = state(described_)
    with pytest.raises(KeyboardInterrupt):
        ns.tune(described_, steps=500)
    assert same(state(described_), before)


@pytest.mark.gpu
def test_on_a_gpu_a_wave_is_a_stack(counted):
    tuning = ns.tune(described("batchnorm", device="cuda"), steps=500)
    assert len(counted) == 1
    assert not any("one at a time" in note for note in tuning.notes)
    assert tuning.rehearsals[0].losses[0] == pytest.approx(tuning.rehearsals[1].losses[0])
    torch.cuda.synchronize()
