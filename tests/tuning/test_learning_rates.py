"""Setting a rate keeps the ratios of groups, and a scheduler goes on from the new rate."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from normscope.tuning.learning_rates import Factors, largest_rate, set_rate


def groups(*rates):
    layer = nn.Linear(2, 1)
    parameters = [{"params": [p], "lr": lr} for p, lr in zip((layer.weight, layer.bias), rates, strict=True)]
    return torch.optim.SGD(parameters)


def rates(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


SCHEDULERS = [
    lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    lambda o: lr_scheduler.OneCycleLR(o, max_lr=[0.2, 0.8], total_steps=20),
    lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
]


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("made", SCHEDULERS)
def test_a_scheduled_rate_is_the_old_course_times_a_factor(made):
    old, new = groups(0.2, 0.8), groups(0.2, 0.8)
    schedulers = made(old), made(new)
    set_rate(new, 10 * largest_rate(new), schedulers[1])
    for _ in range(15):
        for one, two in zip(rates(old), rates(new), strict=True):
            # OneCycleLR ends at a rate of its own, min_lr, which is scaled, too.
            assert two == pytest.approx(10 * one, rel=1e-9)
        for optimizer, scheduler in zip((old, new), schedulers, strict=True):
            optimizer.step()
            scheduler.step()


def test_a_rate_that_is_a_tensor_is_written_in_place():
    lr = torch.tensor(0.1)
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))], lr=lr)
    set_rate(optimizer, 0.5)
    assert float(lr) == 0.5


def test_groups_without_a_rate_get_the_new_one():
    optimizer = groups(0.0, 0.0)
    set_rate(optimizer, 0.3)
    assert rates(optimizer) == [0.3, 0.3]


def test_factors_multiply_each_groups_own_rate():
    optimizer = groups(0.2, 0.8)
    schedule = Factors(optimizer, (1.0, 0.5, 0.25))
    seen = [rates(optimizer)]
    for _ in range(3):
        schedule.step()
        seen.append(rates(optimizer))
    assert seen == [[0.2, 0.8], [0.1, 0.4], [0.05, 0.2], [0.05, 0.2]]
