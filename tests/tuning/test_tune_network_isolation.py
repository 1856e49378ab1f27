"""A tuned model, its optimizer, loaders and generators are bit for bit as they were, whatever happens."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from trainings import data, same, setup, state

import normscope as ns


def trained_a_little(described: ns.Setup) -> None:
    """A few steps, so that gradients, momentum and running statistics are there to be lost."""
    ns.train(described.model, described.loss_fn, described.batches, described.optimizer, steps=3)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_everything_is_as_it_was(kind):
    described = setup(kind=kind, lr=0.01)
    trained_a_little(described)
    random.random(), np.random.rand()  # noqa: NPY002
    before = state(described)
    tuning = ns.tune(described, steps=500, eval_batches=[data(32)])
    assert same(state(described), before)
    assert len(tuning.rehearsals) >= 3
    # The loader gives what it would have given.
    first = next(iter(described.batches))
    other = setup(kind=kind, lr=0.01)
    trained_a_little(other)
    torch.set_rng_state(before["torch"])
    assert same(first, next(iter(other.batches)))


def test_all_parts_of_a_setup_are_as_they_were():
    described = setup()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(described.optimizer, 500)
    averaged = AveragedModel(described.model, use_buffers=True)
    whole = ns.Setup(
        described.model, described.loss_fn, described.batches, described.optimizer, scheduler=scheduler, accumulate=2,
        clip=1.0, scaler=torch.amp.GradScaler("cpu"), averaged_model=averaged, autocast=torch.bfloat16, steps=500,
    )  # fmt: skip
    before, kept = state(whole), copy.deepcopy(averaged.state_dict())
    tuning = ns.tune(whole)
    assert same(state(whole), before)
    assert same(averaged.state_dict(), kept)
    assert (tuning.schedule, tuning.settings["accumulate"]) == ("cosine", 2)
    assert all(each.diverged_at is None for each in tuning.rehearsals if each.lr <= 0.1)


class _Stops(nn.Module):
    """Raises in the n-th forward of a copy."""

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


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ZeroDivisionError("mine"), ZeroDivisionError),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), MemoryError),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
            MemoryError,
        ),
    ],
)
def test_everything_is_as_it_was_after_an_error(error, raised):
    described = setup()
    trained_a_little(described)
    described.model.append(_Stops(25, error))
    before = state(described)
    with pytest.raises(raised):
        ns.tune(described, steps=600)
    after = state(described)
    assert same(after, before)


def test_the_message_on_memory_says_what_to_do():
    described = setup()
    described.model.append(_Stops(5, torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(MemoryError, match=r"while rehearsing the learning rate 0.12: .*accumulate="):
        ns.tune(described, steps=600)


def test_a_loss_computed_with_the_users_own_model_is_refused():
    described = setup()
    model, before = described.model, state(described)

    def decayed(outputs, y):
        return F.cross_entropy(outputs, y) + 0.01 * sum(p.square().sum() for p in model.parameters())

    with pytest.raises(ValueError, match="the model it was written beside"):
        ns.tune(ns.Setup(model, decayed, described.batches, described.optimizer), steps=500)
    assert same(state(described), before)


def test_a_training_step_with_the_users_own_optimizer_is_refused():
    described = setup()
    before = state(described)

    def step(model, batch, optimizer):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        described.optimizer.step()
        return loss

    with pytest.raises(ValueError, match="the optimizer it was written beside"):
        ns.tune(ns.Setup(described.model, None, described.batches, described.optimizer, training_step=step), steps=500)
    assert same(state(described), before)


def test_a_one_shot_stream_still_gives_all_its_batches():
    x, y = data()
    described = setup(batches=iter(list(zip(x.split(16), y.split(16), strict=True))))
    ns.tune(described, steps=500)
    assert torch.equal(torch.cat([batch[0] for batch in described.batches]), x)


def test_a_forward_that_writes_into_its_batch_leaves_the_users_batches():
    x, y = data()
    batches = [{"x": a.clone(), "labels": b} for a, b in zip(x.split(16), y.split(16), strict=True)]
    kept = copy.deepcopy(batches)
    described = setup(batches=batches)

    def forward(model, batch):
        return F.cross_entropy(model(batch["x"].mul_(0.5)), batch.pop("labels"))

    tuning = ns.tune(ns.Setup(described.model, None, batches, described.optimizer, forward=forward), steps=500)
    assert same(batches, kept)
    assert len({each.losses[0] for each in tuning.rehearsals}) == 1
