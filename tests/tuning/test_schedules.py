"""The factors of a schedule are those that torch's own schedulers give."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from normscope.scheduler_factors import factors_of_scheduler
from normscope.tuning.schedules import factors_of, schedule_in_words, without_warm_up


def optimizer(lr=0.5):
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=lr)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("cosine", lambda o: lr_scheduler.CosineAnnealingLR(o, 30)),
        ("linear", lambda o: lr_scheduler.LinearLR(o, 1.0, 1e-12, 30)),
        ("constant", lambda o: lr_scheduler.ConstantLR(o, 1.0)),
    ],
)
def test_they_are_those_of_torch(name, made):
    one = optimizer()
    assert factors_of(name, 30) == pytest.approx(factors_of_scheduler(one, made(one), 30), abs=1e-9)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda o: lr_scheduler.CosineAnnealingLR(o, 30), "cosine"),
        (lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 - step / 30), "linear"),
        (lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0), "constant"),
        (lambda o: lr_scheduler.LambdaLR(o, lambda step: min(1.0, (step + 1) / 10)), "your scheduler"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=20), "your scheduler"),
        (lambda o: lr_scheduler.CosineAnnealingLR(o, 15), "your scheduler"),
    ],
)
def test_a_schedule_is_named_by_its_factors(made, words):
    one = optimizer()
    assert schedule_in_words(factors_of_scheduler(one, made(one), 30), 30) == words


def test_one_cycle_is_read_up_to_its_end():
    one = optimizer()
    factors = factors_of_scheduler(one, lr_scheduler.OneCycleLR(one, 0.5, total_steps=20), 100)
    assert len(factors) == 21  # before the first step and after each of 20
    assert factors[0] == pytest.approx(1 / 25)
    assert max(factors) == pytest.approx(1.0, rel=0.05)


def test_a_short_warm_up_stays():
    assert without_warm_up((0.25, 0.5, 1.0, 1.0), 3) is None
    assert without_warm_up((0.1, 0.2, 0.3, 1.0), 3) == (1.0,)
