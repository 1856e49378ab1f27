"""The usual rate is known by the class of the optimizer, and a note says where it was not measured."""

import pytest
import torch
from torch import nn

from normscope.tuning.prior import ADAM, MEASURED, RATES, SGD, prior_of


def optimizer(kind, **options):
    return kind([nn.Parameter(torch.ones(2))], **options)


class Mine(torch.optim.SGD):
    pass


@pytest.mark.parametrize(
    ("kind", "rate"), [(torch.optim.SGD, SGD), (torch.optim.AdamW, ADAM), (torch.optim.Adam, ADAM)]
)
def test_measured_rates_say_where_they_come_from_and_whether_this_training_is_longer(kind, rate):
    prior = prior_of(optimizer(kind, lr=7.0), 2000)
    assert prior.rate == rate
    assert f"{rate:g}, is the one that was best on small networks trained for 500 to 2,000 steps" in prior.note
    assert "longer" not in prior.note
    assert prior_of(optimizer(kind, lr=7.0), 2001).note == f"{prior.note} This training of 2,001 steps is longer."


def test_other_classes_of_torch_say_that_they_were_not_measured():
    for name in set(RATES) - set(MEASURED):
        assert "not measured" in prior_of(optimizer(getattr(torch.optim, name)), 1000).note


def test_an_unknown_class_keeps_the_rate_it_was_given():
    prior = prior_of(optimizer(Mine, lr=0.3), 1000)
    assert prior.rate == 0.3
    assert "began at the rate that it was given" in prior.note
