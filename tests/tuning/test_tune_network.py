"""`tune` names a rate, refuses what it cannot rehearse, and says where it cannot decide."""

import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from trainings import data, setup

import normscope as ns


def test_the_named_rate_trains_better_than_rates_far_from_it():
    tuning = ns.tune(setup(), steps=500)
    losses = {}
    for lr in (tuning.lr / 1000, tuning.lr, tuning.lr * 100):
        described = setup(lr=lr)
        x, y = data()
        batches = list(zip(x.split(16), y.split(16), strict=True)) * 25
        trained = ns.train(described.model, described.loss_fn, batches, described.optimizer)
        last = trained.losses[-20:]
        losses[lr] = sum(last) / len(last)
    assert min(losses, key=losses.get) == tuning.lr
    low, high = tuning.lr_range
    assert 0 < low <= tuning.lr <= high


@pytest.mark.parametrize(("steps", "passes"), [(500, 50), (999, 99), (1000, 50), (2000, 100), (60, 6)])
def test_the_search_keeps_its_budget(steps, passes):
    tuning = ns.tune(setup(), steps=steps, eval_batches=[data(32)])
    assert tuning.settings["budget_passes"] == passes
    assert tuning.cost.passes_used == pytest.approx(sum(each.passes for each in tuning.rehearsals))
    assert tuning.cost.passes_used <= tuning.cost.passes_predicted[1] + 1e-9 <= passes + 2e-9
    assert tuning.cost.share == tuning.cost.passes_used / steps <= (0.1 if steps < 1000 else 0.05)


def test_every_rate_is_rehearsed_on_the_same_batches():
    tuning = ns.tune(setup(), steps=500)
    assert len({each.losses[0] for each in tuning.rehearsals}) == 1
    assert len({each.losses[1] for each in tuning.rehearsals}) == len(tuning.rehearsals)
    assert ns.tune(setup(), steps=500).rehearsals[0].losses == tuning.rehearsals[0].losses


def test_a_budget_that_buys_nothing_says_what_was_used_instead():
    tuning = ns.tune(setup(), steps=20)
    assert tuning.rehearsals == ()
    assert tuning.cost.passes_used == 0
    assert "Nothing was rehearsed" in tuning.reason
    assert "the usual rate of SGD" in tuning.reason
    assert tuning.lr == 0.12


def test_a_loss_that_falls_nowhere_says_what_was_seen_at_each_rate():
    described = setup(loss_fn=lambda outputs, y: (outputs * 0.0).sum() + 1.0)
    tuning = ns.tune(described, steps=500)
    assert "fell at none" in tuning.reason
    assert "from 1 to 1 at 0.03, 1 at 0.12, 1 at 0.48" in tuning.reason
    assert [each.lr for each in tuning.rehearsals] == pytest.approx([0.03, 0.12, 0.48])


def test_a_rate_that_diverges_in_the_rehearsal_is_not_named():
    described = setup(norm=False, kind=torch.optim.SGD, loss_fn=lambda out, y: F.mse_loss(50 * out[:, 0], y.float()))
    tuning = ns.tune(described, steps=500)
    diverged = [each.lr for each in tuning.rehearsals if each.diverged_at is not None]
    assert diverged
    assert tuning.lr < min(diverged)
    assert tuning.lr_range[1] < min(diverged)


def test_evaluation_batches_that_are_training_batches_are_named():
    described = setup()
    tuning = ns.tune(described, steps=500, eval_batches=described.batches)
    assert any("are training batches" in note for note in tuning.notes)
    x, y = data()
    order = torch.randperm(16)
    tuning = ns.tune(setup(batches=[(x[:16], y[:16])]), steps=500, eval_batches=[(x[:16][order], y[:16][order])])
    assert any("are training batches" in note for note in tuning.notes)
    tuning = ns.tune(setup(batches=[(x[:16], y[:16])]), steps=500, eval_batches=[(x[16:32], y[16:32])])
    assert not any("are training batches" in note for note in tuning.notes)


def test_a_loader_that_ends_is_read_again_and_named():
    x, y = data(32)
    described = setup(batches=[(x[:16], y[:16]), (x[16:], y[16:])])
    tuning = ns.tune(described, steps=500)
    assert any("gives 2 batches, fewer than a rehearsal takes" in note for note in tuning.notes)
    assert all(len(each.losses) == each.steps for each in tuning.rehearsals if each.diverged_at is None)


def warm(step):
    return min(1.0, (step + 1) / 200)


def test_a_warm_up_longer_than_a_rehearsal_is_left_out_and_named():
    tuning = ns.tune(setup(), steps=500, schedule=warm)
    whole = ns.tune(setup(), steps=500)
    assert [each.losses for each in tuning.rehearsals] == [each.losses for each in whole.rehearsals]
    assert any("warms up for longer" in note for note in tuning.notes)
    described = setup()
    scheduler = torch.optim.lr_scheduler.LambdaLR(described.optimizer, warm)
    scheduled = ns.tune(ns.Setup(**vars(described) | {"scheduler": scheduler}), steps=500)
    assert [each.losses for each in scheduled.rehearsals] == [each.losses for each in whole.rehearsals]
    assert any("warms up for longer" in note for note in scheduled.notes)
    assert not any("warms up" in note for note in whole.notes)


class Attending(nn.Module):
    """One attention layer over the features, each of them a token."""

    def __init__(self):
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(32, 1)

    def forward(self, x):
        tokens = x[:, :, None] * torch.ones(4)
        return self.last(self.attention(tokens, tokens, tokens, need_weights=False)[0].flatten(1))


def test_after_a_warm_up_that_no_rehearsal_sees_adam_and_attention_get_a_lower_rate():
    def tuned(model, kind=torch.optim.AdamW, **options):
        x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
        batches = list(zip(x.split(16), x.sum(1, keepdim=True).split(16), strict=True))
        torch.manual_seed(0)
        built = model()
        return ns.tune(built, nn.MSELoss(), batches, kind(built.parameters(), 1e-3), steps=500, **options)

    lowered = tuned(Attending, schedule=warm)
    assert lowered.lr == 1e-3
    assert lowered.lr_range == (2.5e-4, 1e-3)
    assert sum("The rate was lowered to 0.001" in note for note in lowered.notes) == 1
    for others in (
        tuned(Attending),
        tuned(lambda: nn.Linear(8, 1), schedule=warm),
        tuned(Attending, torch.optim.SGD, schedule=warm),
    ):
        assert others.lr > 1e-3
        assert not any("lowered" in note for note in others.notes)


def test_steps_of_few_samples_are_noted():
    def noted(size, **fields):
        described = setup()
        x, y = data()
        batches = list(zip(x.split(size), y.split(size), strict=True))
        tuning = ns.tune(ns.Setup(**vars(described) | {"batches": batches} | fields), steps=500)
        return any("its losses are noisy" in note for note in tuning.notes)

    assert noted(16)
    assert not noted(32)
    assert not noted(16, accumulate=2)


class Closure(torch.optim.SGD):
    def step(self, closure):
        return super().step(closure)


class SAM(torch.optim.SGD):
    pass


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({}, {"steps": 19}, "at least 20; got 19"),
        ({}, {"steps": None}, "planned number of steps"),
        ({}, {"steps": 2.5}, "got 2.5"),
        ({}, {"budget": 0}, "above 0 to 1; got 0"),
        ({}, {"budget": 1.5}, "got 1.5"),
        ({}, {"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({}, {"schedule": lambda step: -1}, "from 0 on; got -1"),
        ({}, {"schedule": lambda step: 0}, "nothing would be trained"),
        ({}, {"engine": "cloud"}, "'local', 'ray'"),
        ({"optimizer": None}, {}, "needs optimizer="),
        ({"batches": None}, {}, "needs batches="),
        ({"batches": []}, {}, "The batches are empty"),
        ({"kind": torch.optim.LBFGS}, {}, "LBFGS searches along a line"),
        ({"kind": Closure}, {}, "Closure needs a closure.*training_step"),
        ({"kind": SAM}, {}, "SAM needs a closure.*training_step"),
    ],
)
def test_what_cannot_be_tuned_is_refused_by_name(fields, options, message):
    with pytest.raises(ValueError, match=message):
        ns.tune(setup(**fields), **{"steps": 500} | options)


def test_a_training_step_of_the_users_is_rehearsed():
    def step(model, batch, optimizer):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    described = setup()
    own = ns.Setup(described.model, None, described.batches, described.optimizer, training_step=step)
    whole = ns.tune(setup(), steps=500)
    assert [each.losses for each in ns.tune(own, steps=500).rehearsals] == [each.losses for each in whole.rehearsals]


def test_a_compiled_model_is_rehearsed_without_compiling():
    described = setup()
    compiled = torch.compile(described.model, backend="eager")
    tuning = ns.tune(compiled, described.loss_fn, described.batches, described.optimizer, steps=500)
    assert tuning.rehearsals[0].losses == ns.tune(setup(), steps=500).rehearsals[0].losses
    assert any("without torch.compile" in note for note in tuning.notes)


def test_the_result_is_plain_json_and_a_page(tmp_path):
    tuning = ns.tune(setup(), steps=500, schedule="cosine", eval_batches=[data(64)])
    tuning.save(tmp_path / "tuning.json")
    held = json.loads((tmp_path / "tuning.json").read_text(), parse_constant=pytest.fail)
    assert (held["kind"], held["schema"], held["lr"]) == ("tuning", 1, tuning.lr)
    page = tuning.report(tmp_path / "page.html").read_text()
    assert "Train with a learning rate of" in page
    frame = tuning.frame()
    assert list(frame["lr"]) == sorted(each.lr for each in tuning.rehearsals)
    assert math.isclose(frame["passes"].sum(), tuning.cost.passes_used)
    assert str(tuning).startswith(f"lr = {tuning.lr:.2g} (")


def test_apply_sets_the_rate_and_keeps_the_ratios_of_groups():
    described = setup()
    tuning = ns.tune(described, steps=500)
    layers = described.model[0], described.model[-1]
    optimizer = torch.optim.SGD(
        [{"params": layer.parameters(), "lr": lr} for layer, lr in zip(layers, (1.0, 4.0), strict=True)]
    )
    tuning.apply(optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [tuning.lr / 4, tuning.lr]
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with pytest.raises(ValueError, match="A scheduler was built on this optimizer"):
        tuning.apply(optimizer)
    tuning.apply(optimizer, scheduler)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[1]["lr"] == pytest.approx(tuning.lr / 2)


def test_the_engine_local_takes_no_address():
    with pytest.raises(ValueError, match="address= names a Ray cluster"):
        ns.tune(setup(), steps=500, address="auto")


@pytest.mark.slow
def test_ray_with_two_workers_gives_the_same_result(tmp_path):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2 * torch.get_num_threads(), include_dashboard=False, log_to_driver=False)
    try:
        there = ns.tune(setup(), steps=500, engine="ray", eval_batches=[data(32)])
    finally:
        ray.shutdown()
    here = ns.tune(setup(), steps=500, eval_batches=[data(32)])
    assert (there.lr, there.lr_range, there.reason) == (here.lr, here.lr_range, here.reason)
    assert [(e.losses, e.held_out) for e in there.rehearsals] == [(e.losses, e.held_out) for e in here.rehearsals]


@pytest.mark.parametrize("steps", [500, 2000])
def test_the_table_shows_the_losses_of_the_reason(steps):
    tuning = ns.tune(setup(), steps=steps)
    survivors = tuning.frame().dropna(subset="last_loss")
    assert len(survivors) >= 2
    for row in survivors.itertuples():
        assert f"{row.last_loss:.3g} at {row.lr:.2g}" in tuning.reason
    assert "mean of the last third" in tuning.reason


def test_the_peak_of_the_schedule_and_the_source_of_the_usual_rate_are_named():
    described = setup()
    scheduler = torch.optim.lr_scheduler.LambdaLR(described.optimizer, lambda step: min(step / 10, 1.0))
    tuning = ns.tune(ns.Setup(**vars(described) | {"scheduler": scheduler}), steps=500)
    peak = "The named rate is the peak of the schedule, at step 10 of 500; its factors lie between 0 and 1."
    assert peak in tuning.notes
    assert any("The usual rate of SGD, 0.12, is the one that was best on small networks" in n for n in tuning.notes)
    assert not any("peak" in note for note in ns.tune(setup(), steps=500).notes)
