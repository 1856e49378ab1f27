"""The train/eval gap: each part against closed forms and interventions, their sum, and what must not move."""

import copy
import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.diagnosis import train_eval_gap

# Two batches of a single BatchNorm: means 1 and 7, biased variances 1 and 9, so population statistics 4 and 10.
BATCHES = [torch.tensor([[0.0], [2.0]], dtype=torch.float64), torch.tensor([[4.0], [10.0]], dtype=torch.float64)]


def second_moment(y, _):
    return y.square().mean()


def layer(mean: float = 4.0, var: float = 10.0) -> nn.BatchNorm1d:
    norm = nn.BatchNorm1d(1, eps=1e-15, affine=False, dtype=torch.float64)
    norm.running_mean.fill_(mean)
    norm.running_var.fill_(var)
    return norm


def looked(model, batches=BATCHES, **fields):
    return train_eval_gap(ns.Setup(model, second_moment, [(x, x) for x in batches], **fields))


def changes(found, of="loss"):
    return {part.name: getattr(part.change, of) for part in found.parts}


class InTraining(nn.Module):
    """Computes `function` of its input in train mode, and nothing in eval mode."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x) if self.training else x


def test_each_part_of_a_single_layer_in_closed_form():
    """Train mode: 1. Population: (16 + 4 + 0 + 36) / 4 / 10. Running (2, 5): (4 + 0 + 4 + 64) / 4 / 5."""
    other = torch.tensor([[2.0], [7.0]], dtype=torch.float64)
    found = looked(layer(2.0, 5.0), eval_batches=[(other, other)])
    assert [each.value.loss for each in found.evaluations] == pytest.approx([1, 1, 1.4, 1.4, 3.6, 2.5])
    expected = {"random_layers": 0, "batch_noise": 0.4, "variance_shift": 0, "running_statistics": 2.2}
    assert changes(found) == pytest.approx(expected | {"data_shift": -1.1})
    assert found.gap.loss == pytest.approx(1.5)
    # On the evaluation batch, population statistics give (4 + 9) / 2 / 10.
    assert found.fix("population_statistics").gain.loss == pytest.approx(2.5 - 0.65)


def test_standard_errors_are_of_differences_between_batches():
    """Batch noise of the two batches: 0 and 0.8."""
    change = looked(layer()).part("batch_noise").change
    assert (change.loss, change.loss_stderr) == pytest.approx((0.4, 0.4))


def test_noise_after_the_normalizer_is_a_random_layer():
    """z + 1 in train mode has the second moment 1 + 1."""
    model = nn.Sequential(layer(), InTraining(lambda z: z + 1))
    expected = {"random_layers": -1, "batch_noise": 0.4, "variance_shift": 0, "running_statistics": 0, "data_shift": 0}
    assert changes(looked(model)) == pytest.approx(expected, abs=1e-12)


def test_a_scale_that_eval_mode_lacks_is_a_variance_shift():
    """2 x in train mode: population statistics 8 and 40, so (64 + 36 + 16 + 4) / 4 / 40 on x itself."""
    found = changes(looked(nn.Sequential(InTraining(lambda x: 2 * x), layer())))
    assert found["random_layers"] == pytest.approx(0, abs=1e-12)
    assert found["variance_shift"] == pytest.approx(0.75 - 1.4)
    assert found["running_statistics"] == pytest.approx(1.4 - 0.75)


def test_a_short_last_batch_counts_less():
    """Batches of 2 and 6: the loss of train mode on outputs of the sizes 1 and 3 is (2 * 1 + 6 * 9) / 8."""
    short, long = torch.tensor([[0.0], [2.0]]).double(), torch.tensor([[0.0], [2.0]]).double().repeat(3, 1)
    model = nn.Sequential(layer(), InTraining(lambda z: z * (1 if len(z) == 2 else 3)))
    assert looked(model, [short, long]).evaluations[0].value.loss == pytest.approx(7.0)


def data(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    return x, (x[:, 0] > 0.3).long() + (x[:, 1] > 0.0).long()


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).double().mean()


def setup(*, batch=16, dropout=0.0, momentum=0.1, lr=0.1, steps=0, **fields) -> ns.Setup:
    """A small classifier, trained for `steps` steps."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.Dropout(dropout), nn.BatchNorm1d(16, momentum=momentum), nn.ReLU(), nn.Linear(16, 3)]
    model = nn.Sequential(*layers)
    loader = DataLoader(TensorDataset(*data(330, 1)), batch, shuffle=True, generator=torch.Generator().manual_seed(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    made = ns.Setup(
        model,
        **{"loss_fn": nn.CrossEntropyLoss(), "batches": loader, "optimizer": optimizer, "metric": accuracy} | fields,
    )
    if steps:
        rounds = -(-steps // len(loader))
        read = [batch for _ in range(rounds) for batch in loader]
        ns.train(model, made.loss_fn, read, optimizer, averaged_model=made.averaged_model, steps=steps)
    return made


@pytest.mark.parametrize("held_out", [None, [data(50, 2), data(20, 4)]])
def test_the_parts_add_up_to_the_gap(held_out):
    found = train_eval_gap(setup(dropout=0.3, steps=20, eval_batches=held_out))
    for of in ("loss", "metric"):
        first, last = (getattr(found.evaluations[place].value, of) for place in (0, -1))
        assert sum(changes(found, of).values()) == pytest.approx(last - first, abs=1e-12)
        assert getattr(found.gap, of) == pytest.approx(last - first, abs=1e-12)
    assert all(change != 0 for name, change in changes(found).items() if name != "data_shift")
    assert (changes(found)["data_shift"] != 0) == (held_out is not None)
    assert any("no evaluation batches" in note for note in found.notes) == (held_out is None)


def test_planted_stale_buffers_are_the_whole_gap():
    trained = setup(batch=330, steps=40)
    ns.norms.use_population_statistics(trained.model, trained.batches)
    assert abs(changes(train_eval_gap(trained))["running_statistics"]) < 1e-6
    trained.model[2].running_var.mul_(40)
    trained.model[2].running_mean.add_(1)
    found = train_eval_gap(trained)
    assert found.gap.loss > 0.1
    assert changes(found)["running_statistics"] == pytest.approx(found.gap.loss, rel=0.01)
    fix = found.fixes[0]
    assert (fix.name, fix.sign) == ("population_statistics", 0)  # one batch has no standard error
    assert fix.gain.loss == pytest.approx(found.gap.loss, rel=0.01)
    assert fix.gain.metric > 0.1


@torch.no_grad()
def evaluated(model, batches):
    model.eval()
    pairs = [(F.cross_entropy(model(x), y, reduction="sum"), len(y)) for x, y in batches]
    return float(sum(total for total, _ in pairs)) / sum(count for _, count in pairs)


def test_the_gain_of_another_momentum_is_that_of_a_training_with_it():
    """A fresh network: its ten steps are those of the copy, with the same batches, so the prediction is exact."""
    batches = list(setup().batches)[:10]
    found = train_eval_gap(setup(batches=batches, momentum=0.01), steps=10, momenta=(0.5,))
    losses = {}
    for momentum in (0.01, 0.5):
        own = setup(batches=batches, momentum=momentum)
        ns.train(own.model, own.loss_fn, batches, own.optimizer, steps=10)
        losses[momentum] = evaluated(own.model, batches)
    assert losses[0.01] - losses[0.5] > 0.05
    assert found.fix("momentum_0.5").gain.loss == pytest.approx(losses[0.01] - losses[0.5], abs=1e-6)


@pytest.mark.parametrize("with_optimizer", [True, False])
def test_the_gain_of_another_momentum_of_a_trained_network(with_optimizer):
    """A momentum of 0.001 has kept most of the first values after 60 steps, which 0.1 would have forgotten."""
    trained = setup(momentum=0.001, lr=0.02, steps=60)
    given = ns.Setup(trained.model, trained.loss_fn, trained.batches, trained.optimizer if with_optimizer else None)
    found = train_eval_gap(given, momenta=(0.1,))
    other = setup(momentum=0.1, lr=0.02, steps=60)
    read = list(setup().batches)
    realised = evaluated(trained.model, read) - evaluated(other.model, read)
    assert realised > 0.05
    assert found.fix("momentum_0.1").gain.loss == pytest.approx(realised, rel=0.25)


def test_the_buffers_of_averaged_weights():
    plain = setup()
    averaged = AveragedModel(plain.model)
    batches = list(plain.batches)[:20]
    ns.train(plain.model, plain.loss_fn, batches, plain.optimizer, averaged_model=averaged, steps=20)
    found = train_eval_gap(ns.Setup(plain.model, plain.loss_fn, batches, averaged_model=averaged))
    before = evaluated(averaged, batches)
    update_bn(batches, averaged)
    gain = found.fix("averaged_buffers").gain.loss
    assert gain > 0.01
    assert gain == pytest.approx(before - evaluated(averaged, batches), abs=1e-5)


def test_small_batches_have_noise_worth_removing_and_large_ones_not():
    small, large = (train_eval_gap(setup(batch=size, steps=60), n_batches=100) for size in (2, 110))
    assert [small.fix(name).sign for name in ("larger_batch", "sync_batch_norm")] == [1, 1]
    assert [large.fix(name).sign for name in ("larger_batch", "sync_batch_norm", "group_norm")] == [0, 0, -1]


def state(given: ns.Setup) -> list:
    """Everything that looking must leave as it was."""
    parts = [given.model.state_dict(), given.optimizer.state_dict(), [p.grad for p in given.model.parameters()]]
    parts += [[m.training for m in given.model.modules()], len(given.optimizer._optimizer_step_pre_hooks)]
    parts += [[len(m._forward_pre_hooks) for m in given.model.modules()], torch.get_rng_state()]
    parts += [given.batches.generator.get_state(), given.scheduler.state_dict(), given.averaged_model.state_dict()]
    return copy.deepcopy(parts)


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def whole_setup(**fields) -> ns.Setup:
    plain = setup(dropout=0.2)
    scheduler = torch.optim.lr_scheduler.StepLR(plain.optimizer, 5)
    averaged = AveragedModel(plain.model, use_buffers=True)
    ns.train(
        plain.model,
        plain.loss_fn,
        plain.batches,
        plain.optimizer,
        scheduler=scheduler,
        averaged_model=averaged,
        steps=7,
    )
    given = {"scheduler": scheduler, "averaged_model": averaged, "metric": accuracy, "eval_batches": [data(20, 2)]}
    return ns.Setup(plain.model, plain.loss_fn, plain.batches, plain.optimizer, **given | fields)


@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize("evaluating", [False, True])
def test_nothing_moves(steps, evaluating):
    given = whole_setup()
    if evaluating:
        given.model.eval()
    before = state(given)
    found = train_eval_gap(given, steps=steps)
    assert same(state(given), before)
    assert {fix.name for fix in found.fixes} >= {"population_statistics", "momentum_0.01", "averaged_buffers"}
    # A network handed in in eval mode is looked at in train mode all the same.
    assert found.part("random_layers").change.loss != 0


@pytest.mark.parametrize("calls", [3, 45, 90])
def test_nothing_moves_after_an_error(calls):
    given = whole_setup()
    before, made = state(given), []

    def failing(outputs, targets):
        made.append(1)
        if len(made) > calls:
            raise ZeroDivisionError
        return F.cross_entropy(outputs, targets)

    with pytest.raises(ZeroDivisionError):
        train_eval_gap(ns.Setup(given.model, failing, given.batches, given.optimizer), steps=5)
    assert same(state(given), before)


def test_a_training_step_with_the_users_optimizer_is_refused():
    given = whole_setup()

    def step(model, batch, optimizer):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        given.optimizer.step()
        return loss

    before = state(given)
    with pytest.raises(ValueError, match="not the one it is handed"):
        train_eval_gap(
            ns.Setup(given.model, given.loss_fn, given.batches, given.optimizer, training_step=step), steps=2
        )
    assert same(state(given), before)


def test_a_loss_with_the_users_model_is_refused():
    given = whole_setup()
    x = data(16, 5)[0]

    def with_its_own_model(outputs, targets):
        return F.cross_entropy(outputs, targets) + given.model(x).square().mean()

    before = state(given)
    with pytest.raises(ValueError, match="not with the one it is handed"):
        train_eval_gap(ns.Setup(given.model, with_its_own_model, given.batches, given.optimizer), steps=2)
    assert same(state(given), before)


def test_a_frozen_batch_norm_stays_frozen():
    given = setup(steps=10)
    given.model[2].eval()
    found = train_eval_gap(given, steps=3)
    assert not given.model[2].training
    assert all(change == 0 for change in changes(found).values())
    assert any("No BatchNorm" in note for note in found.notes)


def test_a_network_without_normalizers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))
    found = train_eval_gap(ns.Setup(model, nn.CrossEntropyLoss(), [data(32, 1)]))
    assert found.fixes == ()
    assert changes(found)["random_layers"] == pytest.approx(found.gap.loss, abs=1e-12)


def test_a_fresh_network_is_trained_first_or_said_to_be_fresh():
    found = train_eval_gap(setup())
    assert found.settings["steps"] == 40
    given = setup()
    found = train_eval_gap(ns.Setup(given.model, given.loss_fn, given.batches))
    assert found.settings["steps"] == 0
    assert any("Train first" in note for note in found.notes)


def test_statistics_without_a_count_give_no_other_momentum():
    given = setup(steps=10)
    given.model[2].num_batches_tracked.zero_()
    found = train_eval_gap(given)
    assert not [fix for fix in found.fixes if fix.name.startswith("momentum")]
    assert any("num_batches_tracked" in note for note in found.notes)


@pytest.mark.parametrize(
    ("fields", "options", "words"),
    [
        ({"batches": None}, {}, "hand in batches="),
        ({}, {"n_batches": 0}, "at least 1"),
        ({"optimizer": None}, {"steps": 3}, "Hand in optimizer="),
        ({}, {"momenta": (0.0,)}, "above 0 to 1"),
    ],
)
def test_bad_input(fields, options, words):
    given = setup()
    parts = {"batches": given.batches, "optimizer": given.optimizer} | fields
    with pytest.raises(ValueError, match=words):
        train_eval_gap(ns.Setup(given.model, given.loss_fn, **parts), **options)


def test_the_result_is_plain_json_and_a_table(tmp_path):
    given = setup(steps=10, metric=None)
    found = train_eval_gap(given)
    found.save(tmp_path / "gap.json")
    held = json.loads((tmp_path / "gap.json").read_text())
    assert (held["kind"], held["schema"]) == ("train_eval_gap", 1)
    assert held["gap"]["loss"] == found.gap.loss
    assert held["gap"]["metric"] == "nan"
    assert math.isnan(found.gap.metric)
    assert found.frame()["loss"].sum() == pytest.approx(found.gap.loss)
    assert "metric" not in str(found)
