"""One description of a training, and all the ways of handing it in."""

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

import normscope as ns
from normscope.setup import NAMES, Setup, as_setup, gathered

X, Y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_a_setup_a_dict_and_a_tuple_say_the_same():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = (model, nn.CrossEntropyLoss(), [(X, Y)], optimizer, [(Y, X)])
    whole = Setup(*parts)
    for count in (3, 4, 5):
        found = as_setup(parts[:count], "train.py:setup")
        for name in NAMES[:count]:
            assert getattr(found, name) is getattr(whole, name)
    named = as_setup({"model": model, "loss_fn": parts[1], "batches": parts[2], "clip": 1.0}, "train.py:setup")
    assert (named.clip, named.optimizer) == (1.0, None)
    assert as_setup(whole, "") is whole
    assert ns.Setup is Setup


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ((network(), F.cross_entropy), "three to five of these; got tuple of 2"),
        ((network(),) * 6, "three to five of these; got tuple of 6"),
        (network(), "or a tuple .*; got Sequential"),
        (None, "got NoneType"),
        ({"model": network(), "los_fn": 3}, "Did you mean 'loss_fn'"),
        ({"loss_fn": F.cross_entropy}, "it has no model"),
        ((F.cross_entropy, network(), []), "model must be a torch.nn.Module; got function"),
        ((network(), "ce", []), "loss_fn must be callable; got str"),
        ((network(), F.cross_entropy, 3), "batches must be an iterable of batches; got int"),
        ((network(), F.cross_entropy, X), "batches must be an iterable of batches; got Tensor"),
        ((network(), F.cross_entropy, torch.utils.data.TensorDataset(X, Y)), "single samples.*DataLoader"),
        ((network(), F.cross_entropy, [], 0.1), "optimizer must be a torch.optim.Optimizer; got float"),
        ((network(), F.cross_entropy, [], torch.optim.SGD([nn.Parameter(X)], 0.1)), "made for another model"),
        ({"model": network(), "accumulate": 0}, "accumulate counts"),
        ({"model": network(), "steps": 0}, "steps counts"),
        ({"model": network(), "clip": -1.0}, "above 0; got -1.0"),
    ],
)
def test_what_is_no_setup_is_named(found, message):
    with pytest.raises(ValueError, match=message):
        as_setup(found, "train.py:setup")


def test_model_and_optimizer_are_copied_together():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    setup = Setup(model, F.cross_entropy, [(X, Y)], optimizer, scheduler=scheduler, averaged_model=AveragedModel(model))
    before = copy.deepcopy(model.state_dict())
    twin = setup.copied()
    assert twin.batches is setup.batches
    assert {id(p) for p in twin.model.parameters()} == {id(p) for p in twin.optimizer.param_groups[0]["params"]}
    ns.train(twin.model, twin.loss_fn, twin.batches, twin.optimizer, scheduler=twin.scheduler)
    assert twin.optimizer.param_groups[0]["lr"] == 0.05
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not torch.equal(twin.model[0].weight, model[0].weight)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_batches_of_a_generator_that_were_looked_at_still_come():
    stream = ((X[i : i + 4], Y[i : i + 4]) for i in (0, 4, 8))
    setup = Setup(network(), F.cross_entropy, stream)
    assert ns.measure(setup, n_batches=2, hessian=False).settings["samples"] == [4, 4]
    assert [int(y[1]) for _, y in setup.batches] == [1, 2, 0]


def test_what_is_handed_in_beside_a_setup_takes_its_place():
    setup = Setup(network(), F.mse_loss, [(X, Y)])
    assert gathered(setup, loss_fn=F.cross_entropy, forward=None).loss_fn is F.cross_entropy
    assert gathered(setup, forward=None).loss_fn is F.mse_loss


def by_hand(model, optimizer, *, accumulate=1, clip=None, scheduler=None, steps=3):
    losses = []
    stream = itertools.cycle([(X[:6], Y[:6]), (X[6:], Y[6:])])
    for _ in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for x, y in itertools.islice(stream, accumulate):
            loss = F.cross_entropy(model(x), y) / accumulate
            loss.backward()
            total += float(loss.detach())
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(total)
    return losses


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip": 0.01}, {"accumulate": 2, "clip": 0.01}])
def test_training_accumulates_clips_and_schedules_as_a_script_does(options):
    runs = []
    for trains in (by_hand, None):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        if trains is not None:
            losses = trains(model, optimizer, scheduler=scheduler, **options)
        else:
            stream = itertools.cycle([(X[:6], Y[:6]), (X[6:], Y[6:])])
            found = ns.train(model, F.cross_entropy, stream, optimizer, scheduler=scheduler, steps=3, **options)
            losses = list(found.losses)
        runs.append((losses, model[0].weight.detach()))
    assert runs[0][0] == pytest.approx(runs[1][0], rel=1e-6)
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=1e-6, atol=1e-8)


def test_a_training_step_of_the_users_is_watched_right_before_its_update():
    def step(model: nn.Module, batch: tuple[Tensor, Tensor], optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    runs = []
    for training_step in (None, step):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        monitor = ns.Monitor(model, F.cross_entropy, every=1, measure="light", budget=None, on_error="raise")
        options = {"training_step": training_step, "monitor": monitor, "steps": 3}
        ns.train(model, F.cross_entropy, itertools.repeat((X, Y)), optimizer, **options)
        runs.append([record.results["critical"] for record in monitor.records])
    assert runs[0] == runs[1]
    assert len(runs[0]) == 3
