"""A rehearsal is the training that the user's own loop would do, and says so when it diverges."""

import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from trainings import data, same, setup

import normscope as ns
from normscope.tuning.rehearsal import rehearse
from normscope.tuning.schedules import factors_of
from normscope.tuning.stage import staged


def stage_of(described, *, steps=6, held_out=0, schedule="constant"):
    factors = None if schedule is None else factors_of(schedule, 100)
    return staged(described, steps=steps, held_out=held_out, factors=factors, horizon=100, seed=7)


def by_hand(described, batches, lr, factor):
    """The training loop that a user would write."""
    torch.manual_seed(7)
    model, optimizer, losses = described.model, described.optimizer, []
    for step, (x, y) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = lr * factor(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_it_trains_as_a_loop_written_by_hand_does():
    stage = stage_of(setup(clip=0.5), schedule="linear")
    made = rehearse(stage, 0.3, 6)
    assert made.losses == tuple(by_hand(setup(), stage.batches, 0.3, lambda step: 1 - step / 100))
    assert (made.passes, made.diverged_at, made.held_out) == (6, None, ())
    # The next rehearsal starts from the same weights, batches and draws.
    assert rehearse(stage, 0.3, 6).losses == made.losses
    assert rehearse(stage, 0.1, 6).losses[0] == made.losses[0]
    assert rehearse(stage, 0.1, 6).losses[1] != made.losses[1]


def test_groups_keep_their_ratios():
    described = setup()
    first, last = described.model[0], described.model[-1]
    optimizer = torch.optim.SGD([{"params": first.parameters(), "lr": 0.0}, {"params": last.parameters(), "lr": 0.5}])
    frozen = ns.Setup(described.model, described.loss_fn, described.batches, optimizer)
    stage = stage_of(frozen)
    made = rehearse(stage, 0.2, 6)
    copy = setup()
    lone = torch.optim.SGD(copy.model[-1].parameters(), lr=0.2)
    torch.manual_seed(7)  # after the weights
    for (x, y), seen in zip(stage.batches, made.losses, strict=True):
        copy.model.zero_grad()
        loss = F.cross_entropy(copy.model(x), y)
        assert loss.item() == seen
        loss.backward()
        lone.step()


class Noise(nn.Module):
    """Draws from the generators of Python and NumPy."""

    def forward(self, x):
        return x + random.random() + np.random.rand()  # noqa: NPY002


def test_every_rehearsal_draws_the_same_numbers_and_puts_all_generators_back():
    described = setup()
    described.model.insert(0, Noise())
    stage = stage_of(described)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002
    one = rehearse(stage, 0.1, 6)
    assert same((torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)), states)  # noqa: NPY002
    random.random(), np.random.rand()  # noqa: NPY002
    assert rehearse(stage, 0.1, 6).losses == one.losses


def test_divergence_is_a_result():
    made = rehearse(stage_of(setup(norm=False, loss_fn=lambda out, y: out.square().sum()), steps=40), 1e3, 40)
    assert made.diverged_at is not None
    assert made.passes == made.diverged_at + 1 < 40
    assert not math.isfinite(made.losses[-1]) or made.losses[-1] > 1e3 * made.losses[0]


def test_held_out_batches_are_judged_in_eval_mode_with_fresh_statistics():
    x, y = data(64)
    described = setup(
        eval_batches=[(x[:32], y[:32]), (x[32:], y[32:])], metric=lambda out, y: out.argmax(1).eq(y).float().mean()
    )
    stage = stage_of(described, steps=4, held_out=2)
    made = rehearse(stage, 0.1, 4)
    copy = setup()
    torch.manual_seed(7)
    for a, b in stage.batches:
        copy.optimizer.zero_grad()
        F.cross_entropy(copy.model(a), b).backward()
        copy.optimizer.step()
    norm = copy.model[1]
    inputs = [copy.model[0](a).detach() for a, _ in stage.batches[:2]]
    norm.running_mean.copy_(sum(each.mean(0) for each in inputs) / 2)
    norm.running_var.copy_(sum(each.var(0) for each in inputs) / 2)
    copy.model.eval()
    wanted = [F.cross_entropy(copy.model(a), b).item() for a, b in described.eval_batches]
    assert made.held_out == pytest.approx(wanted, rel=1e-5)
    right = sum(int(copy.model(a).argmax(1).eq(b).sum()) for a, b in described.eval_batches)
    assert made.metric == pytest.approx(right / 64)
    assert made.passes == pytest.approx(4 + 4 / 3)


def test_layers_in_eval_mode_stay_in_eval_mode():
    described = setup()
    described.model[1].eval()
    described.model[1].running_mean.fill_(0.5)
    stage = stage_of(described)
    made = rehearse(stage, 0.1, 6)
    torch.manual_seed(7)
    x, y = stage.batches[0]
    assert made.losses[0] == F.cross_entropy(described.model(x), y).item()
    assert described.model[1].training is False


def test_accumulation_counts_a_step_as_one_pass():
    described = setup(accumulate=4)
    made = rehearse(stage_of(described, steps=3), 0.1, 3)
    assert (len(made.losses), made.passes) == (3, 3)
    first = setup()
    torch.manual_seed(7)
    batches = stage_of(described, steps=1).batches
    mean = sum(F.cross_entropy(first.model(x), y).item() for x, y in batches) / 4
    assert made.losses[0] == pytest.approx(mean, rel=1e-6)
