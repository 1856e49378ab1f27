"""Products with constants and shifts between the layers."""

import pytest
import torch
from torch import nn

import normscope as ns


class Affine(nn.Module):
    def __init__(self, factor: float, constant: float) -> None:
        super().__init__()
        self.factor, self.constant = factor, constant

    def forward(self, x):
        return x * self.factor + self.constant


def stack(at, factor=1.0, constant=0.0, width=60, layers=8):
    torch.manual_seed(0)
    found, c = [], 50
    for _ in range(layers):
        block = [nn.Linear(c, width, bias=False), nn.BatchNorm1d(width, eps=0.0), nn.ReLU()]
        found += [*block[:at], Affine(factor, constant), *block[at:]]
        c = width
    return nn.Sequential(*found, nn.Linear(width, 10))


@pytest.mark.parametrize("stats", ["batch", "frozen"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_times_one_plus_zero_is_nothing(at, stats):
    plain = ns.predict(stack(0), (50,), stats=stats).lambda_max
    assert ns.predict(stack(at), (50,), stats=stats).lambda_max == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("stats", ["batch", "frozen"])
def test_batch_norm_takes_a_product_and_a_shift_out(stats):
    plain = ns.predict(stack(0), (50,), stats=stats).lambda_max
    assert ns.predict(stack(1, 0.3, 0.7), (50,), stats=stats).lambda_max == pytest.approx(plain, rel=1e-6)
