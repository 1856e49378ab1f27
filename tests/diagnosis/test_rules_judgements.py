"""Judgements of rules that their examples do not show."""

import copy
from dataclasses import replace

import pytest
import torch
from diagnosed import data, network, setup
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, update_bn

import normscope as ns
from normscope.diagnosis import diagnose_network


def names(found, severity="warning"):
    return [each.name for each in found.at_least(severity)]


def test_unsynchronized_statistics_of_several_processes(monkeypatch):
    judge = diagnose_network._judge
    monkeypatch.setattr(diagnose_network, "_judge", lambda wanted, look: judge(wanted, replace(look, processes=4)))
    assert names(ns.diagnose(setup(batch_size=4), rules="NS115")) == ["unsynchronized-statistics"]
    assert names(ns.diagnose(setup(batch_size=32), rules="NS115")) == []
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(network())
    assert names(ns.diagnose(ns.Setup(synced), rules="NS115")) == []


def test_a_trained_model_with_statistics_of_other_data_is_stale():
    described = setup()
    ns.train(described.model, described.loss_fn, described.batches, described.optimizer, steps=60)
    x, y = data()
    batches = list(zip(x.split(32), y.split(32), strict=True))
    assert names(ns.diagnose(described.model, described.loss_fn, batches, rules="NS201")) == []
    described.model[1].running_mean.add_(3.0)
    assert names(ns.diagnose(described.model, described.loss_fn, batches, rules="NS201")) == [
        "stale-running-statistics"
    ]


def test_a_training_step_that_feeds_other_data_leads_to_stale_statistics():
    def step(model, batch, optimizer):
        with torch.no_grad():
            model(batch[0] * 3 + 4)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    assert "stale-running-statistics" in names(ns.diagnose(setup(training_step=step), rules="NS201"))


def test_statistics_of_a_trained_model_are_priced_and_without_gain_a_note():
    described = setup()
    ns.train(described.model, described.loss_fn, described.batches, described.optimizer, steps=60)
    model, (x, y) = described.model, data()
    batches = list(zip(x.split(32), y.split(32), strict=True))
    model[1].running_mean.add_(3.0)
    (found,) = ns.diagnose(model, described.loss_fn, batches, rules="NS201").findings
    assert (found.severity, found.cost.how) == ("error", "measured")
    assert found.cost.value > 2 * found.cost.spread
    opposite = [(x, 1 - F.one_hot(y, 3).float()) for x, y in batches]
    (found,) = ns.diagnose(
        model, lambda out, t: (out.softmax(1) * (1 - t)).sum(1).mean(), opposite, rules="NS201"
    ).findings
    assert found.cost.value < 0
    assert found.severity == "note"


def test_frozen_first_layers_of_a_flat_network_are_a_frozen_backbone():
    described = setup()
    described.model[:2].requires_grad_(False)
    (found,) = ns.diagnose(described, rules="NS113").at_least("warning")
    assert found.layers == ("1",)
    exec(found.fix, {"model": described.model})
    assert not described.model[1].training
    assert names(ns.diagnose(described, rules="NS113")) == []


def test_fixed_scales_behind_a_trained_layer_are_no_frozen_backbone():
    described = setup()
    described.model[1].requires_grad_(False)
    assert names(ns.diagnose(described, rules="NS113")) == []


def test_a_momentum_encoder_is_not_a_frozen_backbone():
    class Twins(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = network()
            self.key = copy.deepcopy(self.query).requires_grad_(False)

        def forward(self, x):
            with torch.no_grad():
                for mine, theirs in zip(self.key.parameters(), self.query.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)
                target = self.key(x)
            return self.query(x) + 0.1 * target

    assert names(ns.diagnose(setup(Twins()), rules="NS113")) == []


def test_a_part_left_out_of_the_optimizer_with_its_weights_is_meant():
    body, head = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU()), nn.Linear(16, 3)
    described = setup(nn.Sequential(body, head))
    described = replace(described, optimizer=torch.optim.SGD(head.parameters(), lr=0.1))
    assert names(ns.diagnose(described, rules="NS110")) == []


class Recomputed(AveragedModel):
    """Averaged weights whose statistics are computed again every 10 updates."""

    def update_parameters(self, model):
        super().update_parameters(model)
        if int(self.n_averaged) % 10 == 0:
            update_bn([data()[0]], self)


@pytest.mark.parametrize("kind", [Recomputed, lambda model: AveragedModel(model, use_buffers=True)])
def test_averages_with_their_own_statistics_are_clean(kind):
    model = network()
    assert names(ns.diagnose(setup(model, averaged_model=kind(model), lr=0.5), rules="NS206")) == []


def test_zero_scales_of_residual_branches_are_clean():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.branch = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))
            nn.init.zeros_(self.branch[1].weight)

        def forward(self, x):
            return x + self.branch(x)

    model = nn.Sequential(nn.Linear(6, 16), Block(), Block(), nn.Linear(16, 3))
    assert names(ns.diagnose(setup(model), rules=["NS116", "NS209"])) == []


def test_eval_mode_set_in_a_training_step_is_seen():
    def step(model, batch, optimizer):
        model.eval()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    assert names(ns.diagnose(setup(training_step=step), rules="NS111")) == ["eval-mode-in-training"]


def test_a_forward_that_switches_to_train_mode_is_seen():
    found = ns.diagnose(setup(forward=lambda model, batch: model.train()(batch[0])), rules="NS112")
    assert names(found) == ["train-mode-at-evaluation"]


def test_a_checkpoint_without_running_statistics():
    model = network()
    weights = {name: value for name, value in model.state_dict().items() if "running" not in name}
    assert names(ns.diagnose(model, weights, rules="NS201")) == ["stale-running-statistics"]
    assert names(ns.diagnose(model, model.state_dict(), rules="NS201")) == []


def test_noisy_small_losses_are_no_rise():
    generator = torch.Generator().manual_seed(5)

    def noisy(outputs, y):
        return 1e-3 * F.cross_entropy(outputs, y) + torch.rand((), generator=generator).square()

    assert names(ns.diagnose(setup(loss_fn=noisy), rules="NS303")) == []


class OwnBatchNorm(nn.Module):
    """BatchNorm written by hand."""

    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x):
        mean, var = (x.mean(0), x.var(0, correction=0)) if self.training else (self.running_mean, self.running_var)
        if self.training:
            self.running_mean.lerp_(mean.detach(), 0.1)
            self.running_var.lerp_(var.detach(), 0.1)
        return self.weight * (x - mean) * (var + 1e-5).rsqrt() + self.bias


def test_a_hand_written_batchnorm_is_judged():
    model = nn.Sequential(nn.Linear(6, 16), OwnBatchNorm(16), nn.ReLU(), nn.Linear(16, 3))
    found = ns.diagnose(setup(model, batch_size=2), rules="NS202")
    assert names(found) == ["small-batch-noise"]
    assert found.looked_at[0].startswith("1 normalizers")
    assert ns.diagnose(setup(model)).ok


def test_a_frozen_layer_with_the_buffers_of_batchnorm_is_no_normalizer_over_the_batch():
    class Frozen(OwnBatchNorm):
        def forward(self, x):
            return self.weight * (x - self.running_mean) * (self.running_var + 1e-5).rsqrt() + self.bias

    model = nn.Sequential(nn.Linear(6, 16), Frozen(16), nn.ReLU(), nn.Linear(16, 3))
    assert names(ns.diagnose(setup(model, batch_size=2), rules="NS202")) == []


@pytest.mark.parametrize("change", [lambda x: x + 1, lambda x: 3 * x])
def test_images_of_another_preprocessing_are_shifted(change):
    digits = ns.data.digits(seed=0)
    x, y = digits.x_train.view(-1, 1, 8, 8)[:640], digits.y_train[:640]
    batches = list(zip(x.split(64), y.split(64), strict=True))
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    described = setup(model, batches=batches, eval_batches=[(change(a), b) for a, b in batches[:3]])
    assert names(ns.diagnose(described, rules="NS203")) == ["shifted-evaluation-data"]
    assert names(ns.diagnose(replace(described, eval_batches=batches[:3]), rules="NS203")) == []


def decaying(weight_decay, **fields):
    """A training by SGD with momentum and decay on all parameters."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=weight_decay)
    return setup(model, optimizer=optimizer, **fields)


def test_decay_of_the_usual_recipe_is_a_note():
    described = decaying(1e-4, steps=450_000)
    (found,) = ns.diagnose(described, rules="NS104").findings
    assert found.severity == "note"
    assert "gradients moved the scales more" in found.text
    assert found.evidence.value < 0.2


def test_decay_that_beats_the_gradients_is_a_warning_and_says_that_the_rate_is_constant():
    (found,) = ns.diagnose(decaying(0.1, steps=300), rules="NS104").findings
    assert found.severity == "warning"
    assert "constant rate since the setup has no scheduler" in found.text
    assert found.evidence.value > 2


def test_decay_over_the_scheduled_steps_names_no_constant_rate():
    described = decaying(0.1, steps=300)
    described = replace(described, scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(described.optimizer, 300))
    (found,) = ns.diagnose(described, rules="NS104").findings
    assert found.severity == "warning"
    assert "constant rate" not in found.text


@pytest.mark.parametrize("batches", [True, False])
def test_without_steps_no_evidence_is_nan(batches):
    described = decaying(0.1, steps=None)
    described = described if batches else replace(described, batches=None, eval_batches=None)
    (found,) = ns.diagnose(described, rules="NS104").findings
    assert found.severity == "note"
    assert "not known" in found.text
    assert "nan" not in str(found.evidence)
    slow = ns.diagnose(setup(network(momentum=1e-4), steps=None), rules="NS102").findings[0]
    assert "nan" not in str(slow.evidence)


def test_small_gradients_of_queries_and_keys_do_not_vanish_along_depth():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(6, 6) for _ in range(3))
            self.out = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
            nn.init.normal_(self.query.weight, std=1e-6)

        def forward(self, x):
            query, key, value = self.query(x)[:, None], self.key(x)[:, None], self.value(x)[:, None]
            return self.out((value + 1e-6 * (query * key).softmax(-1))[:, 0])

    assert names(ns.diagnose(setup(Attention(), lr=1e-6), rules="NS302")) == []
