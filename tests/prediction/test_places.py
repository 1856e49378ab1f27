"""What finite width does to BatchNorm: lengths of weights and of places, against draws and whole networks."""

import math
import statistics
from itertools import pairwise, product

import pytest
import torch
from order_parameters import measured
from torch import nn

import normscope as ns
from normscope.prediction.linear import kept_by_norm
from normscope.theory.places import kurtosis, tied
from normscope.theory.sites import Sites
from normscope.theory.window import Window


@pytest.mark.parametrize("freedom", [8, 30])
def test_weights_of_one_length(freedom):
    """E[|w|^2 / s^2] = (1 - 2 / d) (E |w|^2) E[1 / s^2] where s^2 takes some of d directions alike."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(400_000, 40, generator=generator, dtype=torch.float64)
    s2 = w[:, :freedom].square().mean(1)
    ratio = (w.square().mean(1) / s2) / (1 / s2).mean()
    error = float(ratio.std()) / math.sqrt(len(ratio))
    assert float(ratio.mean()) == pytest.approx(kept_by_norm(40), abs=4 * error)


def test_values_of_places_that_differ_in_length():
    """E[relu] of Gaussian values whose variances are log-normal, to first order by their kurtosis and beyond."""
    generator = torch.Generator().manual_seed(0)
    for u in (0.05, 0.8):
        s2 = math.log1p(u)
        lengths = torch.exp(math.sqrt(s2) * torch.randn(1_000_000, generator=generator).double() - s2 / 2)
        draws = torch.relu(lengths.sqrt() * torch.randn(len(lengths), generator=generator).double())
        error = float(draws.std()) / math.sqrt(len(draws))
        expected = (1 - kurtosis(u) / 24) / math.sqrt(2 * math.pi)
        assert float(draws.mean()) == pytest.approx(expected, abs=4 * error)


@pytest.mark.parametrize("form", ["torus", "exact"])
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 1, 1), (2, 0, 1), (1, 2, 2)])
def test_squared_correlations_of_taps(form, stride, padding, dilation):
    """Tap by tap, window by window; zeros where a tap is padding."""
    n = 6
    generator = torch.Generator().manual_seed(0)
    wave = torch.rand(n, n, generator=generator, dtype=torch.float64)
    offsets = torch.fft.ifft2(torch.fft.fft2(wave).abs().square()).real
    offsets = torch.stack([offsets / offsets[0, 0], torch.zeros(n, n, dtype=torch.float64)])
    places = [(i, j) for i in range(n) for j in range(n)]
    pairs = torch.tensor([[float(offsets[0, (c - a) % n, (d - b) % n]) for c, d in places] for a, b in places])
    kernel = offsets if form == "torus" else torch.stack([pairs.double(), 0 * pairs.double()])
    window = Window(Sites(form, n, n, 8), (3, 3), (stride,) * 2, (padding,) * 2, (dilation,) * 2)
    taps = [dilation * t - padding for t in range(3)]
    found = 0.0
    for row, column in product(range(window.after.height), range(window.after.width)):
        inside = [(stride * row + y, stride * column + x) for y, x in product(taps, taps)]
        inside = [(i, j) for i, j in inside if 0 <= i < n and 0 <= j < n]
        found += sum(float(offsets[0, (c - a) % n, (d - b) % n]) ** 2 for a, b in inside for c, d in inside) / 81
    assert tied(window, kernel) == pytest.approx(found / window.after.count, rel=1e-6)


@pytest.mark.parametrize("stats", ["batch", "frozen"])
def test_gradients_of_a_deep_and_narrow_stack(stats):
    """Ten layers of 60 channels: 0.84 to 0.95 of the predicted growth was seen, where it was 0.55."""

    def make(seed: int) -> nn.Sequential:
        with ns.models.init.seeded(seed):
            widths = [200, *[60] * 10]
            layers = [
                layer
                for a, b in pairwise(widths)
                for layer in (nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU())
            ]
            return nn.Sequential(*layers, nn.Linear(60, 3))

    seen = []
    for seed in range(40):
        x = torch.randn(128, 200, generator=torch.Generator().manual_seed(seed))
        rows = list(measured(make(seed), x, stats).values())
        seen.append((rows[0]["qt"], rows[-2]["qt"]))
    grown = statistics.mean(first for first, _ in seen) / statistics.mean(last for _, last in seen)
    rows = [row for row in ns.predict(make(0), (200,), batch_size=128, stats=stats).layers if "qt" in row]
    assert grown == pytest.approx(rows[0]["qt"] / rows[-2]["qt"], rel=0.2)
