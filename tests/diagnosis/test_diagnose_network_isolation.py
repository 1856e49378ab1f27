"""A diagnosed model, its optimizer, loaders and generators are bit for bit as they were, whatever happens."""

import random

import numpy as np
import pytest
import torch
from diagnosed import data, network, same, setup, state
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

import normscope as ns


def trained_a_little(described: ns.Setup) -> None:
    """A few steps, so that gradients, momentum and running statistics are there to be lost."""
    ns.train(described.model, described.loss_fn, described.batches, described.optimizer, steps=3)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_everything_is_as_it_was(kind):
    described = setup(network(momentum=0.99), kind=kind, lr=0.01)
    trained_a_little(described)
    random.random(), np.random.rand()  # noqa: NPY002
    before = state(described)
    found = ns.diagnose(described)
    assert same(state(described), before)
    assert any("16 training steps" in each for each in found.looked_at)
    # The loader gives what it would have given.
    first = next(iter(described.batches))
    other = setup(network(momentum=0.99), kind=kind, lr=0.01)
    trained_a_little(other)
    torch.set_rng_state(before["torch"])
    assert same(first, next(iter(other.batches)))


def test_all_parts_of_a_setup_are_as_they_were():
    model = network()
    averaged = AveragedModel(model)
    described = setup(model, averaged_model=averaged, accumulate=2, clip=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(described.optimizer, 200)
    described = setup(model, averaged_model=averaged, accumulate=2, clip=1.0, scheduler=scheduler)
    described = ns.Setup(**{**vars(described), "optimizer": scheduler.optimizer})
    before = state(described)
    ns.diagnose(described)
    assert same(state(described), before)


def test_a_training_step_with_the_users_own_optimizer_moves_nothing():
    described = setup()
    before = state(described)

    def step(model, batch, optimizer):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        described.optimizer.step()
        return loss

    given = ns.Setup(described.model, None, described.batches, described.optimizer, training_step=step, steps=100)
    found = ns.diagnose(given)
    assert same(state(described), before)
    assert any("the optimizer it was written beside" in reason for reason in found.skipped.values())


def test_modules_in_the_closure_of_a_training_step_are_as_they_were():
    beside = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    kept = {name: value.clone() for name, value in beside.state_dict().items()}

    def step(model, batch, optimizer):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(beside(batch[0])), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    described = setup()
    given = ns.Setup(described.model, None, described.batches, described.optimizer, training_step=step, steps=100)
    before = state(given)
    ns.diagnose(given)
    assert same(dict(beside.state_dict()), kept)
    assert same(state(given), before)


class _Stops(nn.Module):
    def __init__(self, after: int, error: BaseException) -> None:
        super().__init__()
        self.after, self.error, self.calls = after, error, [0]

    def __deepcopy__(self, memo):
        return self

    def forward(self, x):
        self.calls[0] += 1
        if self.calls[0] > self.after:
            raise self.error
        return x


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError("mine")])
@pytest.mark.parametrize("after", [3, 15])
def test_everything_is_as_it_was_after_an_error(error, after):
    model = network(momentum=0.99)
    model.append(_Stops(after, error))
    described = setup(model)
    before = state(described)
    with pytest.raises(type(error)):
        ns.diagnose(described)
    assert same(state(described), before)


def test_a_one_shot_stream_still_gives_all_its_batches():
    x, y = data()
    described = setup(batches=iter(list(zip(x.split(16), y.split(16), strict=True))))
    ns.diagnose(described)
    assert torch.equal(torch.cat([batch[0] for batch in described.batches]), x)
