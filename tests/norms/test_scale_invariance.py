"""Layers that normalize in a way of their own: told by what they compute, not by the names of their classes."""

import pytest
import torch
from torch import nn

from normscope.norms.find_norms import find_norms
from normscope.norms.scale_invariance import Normalizing, normalizing

NO_KIND = "it computes a normalization that is none of the known kinds"


class BatchAbs(nn.Module):
    """Divides each channel by its mean absolute value over the batch."""

    def __init__(self, channels):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels))
        self.register_buffer("running", torch.ones(channels))

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.running.lerp_(x.abs().mean(0), 0.1)
        return self.gain * x / ((x.abs().mean(0) if self.training else self.running) + 1e-5)


class BatchMax(BatchAbs):
    def forward(self, x):
        return self.gain * x / (x.abs().amax(0) + 1e-5)


class CentredMax(BatchAbs):
    def forward(self, x):
        centred = x - x.mean(0)
        return self.gain * centred / (centred.abs().amax(0) + 1e-5)


class UnbiasedBatch(BatchAbs):
    def forward(self, x):
        return self.gain * (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()


class Scale(BatchAbs):
    def forward(self, x):
        return self.gain * x


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (BatchAbs, NO_KIND),
        (BatchMax, NO_KIND),
        (CentredMax, NO_KIND),
        (UnbiasedBatch, "a BatchNorm with code"),
    ],
)
def test_only_what_subtracts_the_mean_and_divides_by_the_deviation_is_called_a_batchnorm(layer, reason):
    found = find_norms(nn.Sequential(nn.Linear(4, 20), layer(20)))
    assert not found.layers
    assert reason in found.left["1"]


def test_a_scale_is_no_normalizer():
    assert not find_norms(nn.Sequential(nn.Linear(4, 20), Scale(20))).left


def test_a_normalizer_is_told_from_elementwise_functions_and_matrices():
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(0)) + 2

    def seen(forward):
        return normalizing(forward, x, forward(x))

    over_batch, by_sample, no = Normalizing(True, True), Normalizing(True, False), Normalizing(False, False)
    assert seen(lambda x: x / x.abs().mean(0)) == over_batch
    assert seen(lambda x: x / x.abs().mean(1, keepdim=True)) == by_sample
    # A large bias hides no change.
    assert seen(lambda x: 1e-3 * x + 1e3) == no
    assert seen(torch.sign) == seen(lambda x: torch.tanh(50 * x)) == no
    assert seen(nn.Linear(6, 6)) == seen(lambda x: x - x.mean(0)) == seen(torch.zeros_like) == no
