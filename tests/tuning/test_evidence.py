"""The evidence against a rate: differences of losses on the same batches, against their noise."""

import math

import pytest
import torch

from normscope.tuning.evidence import SMALLEST_DIFFERENCE, evidence, score
from normscope.tuning.rehearsal import Rehearsal


def made(lr, *last, first=2.0, diverged_at=None):
    """A rehearsal with these losses in its last third."""
    return Rehearsal(lr, 3 * len(last), (first,) * (2 * len(last)) + last, diverged_at)


def test_it_is_the_formula():
    found = evidence([made(0.4, 1.2, 1.6), made(0.1, 1.0, 1.1)])
    differences = torch.tensor([0.2, 0.5]) / 1.05
    noise = differences.var() / 2
    assert found.rates == (0.1, 0.4)
    assert found.against == pytest.approx((0.0, float(differences.mean() / (SMALLEST_DIFFERENCE**2 + noise) ** 0.5)))


def test_noise_weakens_it_and_a_shared_offset_of_the_batches_does_not():
    clear = evidence([made(0.1, 1.0, 1.0, 1.0), made(0.4, 1.1, 1.1, 1.1)]).against[1]
    noisy = evidence([made(0.1, 1.0, 1.0, 1.0), made(0.4, 0.9, 1.4, 1.0)]).against[1]
    hard_batch = evidence([made(0.1, 1.0, 1.3, 0.7), made(0.4, 1.1, 1.4, 0.8)]).against[1]
    assert noisy < 0.2 * clear
    assert hard_batch == pytest.approx(clear)
    assert clear == pytest.approx(0.1 / SMALLEST_DIFFERENCE)


def test_an_exploding_rate_counts_in_full_however_its_losses_scatter():
    found = evidence([made(0.1, 1.0, 1.0), made(0.4, 30.0, 900.0), made(1.6, 1.0, 1.0, diverged_at=3)])
    assert found.against == pytest.approx((0.0, 1 / SMALLEST_DIFFERENCE, 1 / SMALLEST_DIFFERENCE))
    assert score(made(1.6, 1.0, diverged_at=3)) == math.inf


def test_it_does_not_change_with_the_unit_of_the_loss():
    small = evidence([made(0.1, 1.0, 1.0), made(0.4, 1.2, 1.3)]).against
    large = evidence([made(0.1, 100.0, 100.0, first=200.0), made(0.4, 120.0, 130.0, first=200.0)]).against
    assert large == pytest.approx(small)


def test_a_loss_near_zero_is_compared_on_the_scale_of_the_first():
    found = evidence([made(0.1, 1e-9, 1e-9), made(0.4, 2e-9, 2e-9)])
    assert found.against[1] < 1e-3


def test_negative_losses_are_ranked_as_well():
    found = evidence([made(0.1, -1.0, -1.0, first=0.5), made(0.4, -1.2, -1.2, first=0.5)])
    assert found.against == pytest.approx((0.2 / 1.2 / SMALLEST_DIFFERENCE, 0.0))


def test_losses_that_are_all_zero_say_nothing():
    assert evidence([made(0.1, 0.0, 0.0, first=0.0), made(0.4, 0.0, 0.0, first=0.0)]).against == (0.0, 0.0)


def test_there_is_none_where_all_diverged():
    assert evidence([made(0.1, 1.0, diverged_at=1)]) is None
