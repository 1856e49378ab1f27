"""Windows on kernels against loops over sites, and their transposes."""

import itertools

import pytest
import torch

from normscope.theory.convolved_kernels import convolve, convolve_back, pool, pool_back
from normscope.theory.site_pairs import ExactSites, TorusSites
from normscope.theory.taps import Window

CASES = [
    ((3, 3), (1, 1), (1, 1), (1, 1)),
    ((3, 3), (2, 2), (0, 0), (1, 1)),
    ((3, 3), (2, 2), (1, 1), (1, 1)),
    ((2, 3), (2, 1), (0, 1), (1, 1)),
    ((3, 3), (1, 1), (2, 2), (2, 2)),
    ((6, 5), (1, 1), (0, 0), (1, 1)),
]


def window(form: str, case) -> Window:
    kernel, stride, padding, dilation = case
    sites = TorusSites(6, 5, 4, limit=0) if form == "torus" else ExactSites(6, 5, 4, limit=100)
    return Window(sites, kernel, stride, padding, dilation)


def slow(w: Window, kernel: torch.Tensor, *, every_pair: bool) -> torch.Tensor:
    """K'[a, b] site by site: the same tap at both ends, or every pair of taps."""
    before, after = w.before, w.after
    taps = list(itertools.product(range(w.kernel[0]), range(w.kernel[1])))

    def value(k, a, f, b, g):
        ends = []
        for site, tap in ((a, f), (b, g)):
            y = w.stride[0] * (site // after.width) + w.dilation[0] * tap[0] - w.padding[0]
            x = w.stride[1] * (site % after.width) + w.dilation[1] * tap[1] - w.padding[1]
            if not (0 <= y < before.height and 0 <= x < before.width):
                return 0.0
            ends.append(y * before.width + x)
        return float(k[ends[0], ends[1]])

    found = torch.zeros(2, after.count, after.count, dtype=torch.float64)
    for c, a, b in itertools.product(range(2), range(after.count), range(after.count)):
        pairs = itertools.product(taps, taps) if every_pair else ((f, f) for f in taps)
        scale = w.taps**2 if every_pair else w.taps
        found[c, a, b] = sum(value(kernel[c], a, f, b, g) for f, g in pairs) / scale
    return found


def kernels(count: int) -> torch.Tensor:
    return torch.randn(2, count, count, dtype=torch.float64)


@pytest.mark.parametrize("case", CASES)
def test_convolutions_are_their_loops(case):
    w, k = window("exact", case), kernels(30)
    torch.testing.assert_close(convolve(w, k), slow(w, k, every_pair=False))


@pytest.mark.parametrize("case", [c for c in CASES if c[3] == (1, 1)])
def test_average_pooling_is_its_loop(case):
    w, k = window("exact", case), kernels(30)
    torch.testing.assert_close(pool(w, k), slow(w, k, every_pair=True))


@pytest.mark.parametrize("form", ["exact", "torus"])
@pytest.mark.parametrize("case", CASES)
def test_cotangents_go_through_the_transpose(form, case):
    """sum over pairs of sites (A K) G = sum over pairs of sites K (A^T G); a torus of S sites has S pairs an offset."""
    w = window(form, case)
    maps = [(convolve, convolve_back)] + ([(pool, pool_back)] if case[3] == (1, 1) else [])
    k = kernels(30) if form == "exact" else torch.randn(2, 6, 5, dtype=torch.float64)
    for forward, back in maps:
        out = forward(w, k)
        g = torch.randn(1, *out.shape, dtype=torch.float64)
        pairs = w.after.count if isinstance(w.after, TorusSites) else 1
        left = (out * g).sum() * pairs
        right = (k * back(w, g)).sum() * (w.before.count if form == "torus" else 1)
        torch.testing.assert_close(left, right)


def test_a_torus_becomes_exact_with_its_padding():
    """White noise has no borders of its own, so the first convolution of it is exact whatever its size."""
    size = (3, 3), (2, 2), (1, 1), (1, 1)
    torus, exact = TorusSites(6, 5, 4), ExactSites(6, 5, 4)
    found = convolve(Window(torus, *size), torus.same())
    torch.testing.assert_close(found, convolve(Window(exact, *size), exact.same()))


def test_by_offsets_a_stride_takes_every_other_one():
    """K'[b - a] = share inside at both ends x K[2 (b - a)], to both sides; one tap of 18 along an axis is padding."""
    w = Window(TorusSites(12, 12, 4, limit=0), (3, 3), (2, 2), (1, 1))
    k = torch.randn(2, 12, 12, dtype=torch.float64)
    found = convolve(w, k)
    for y, x in ((0, 0), (1, 0), (0, 2), (5, 1), (-1, -2)):
        inside = (17 / 18 if y == 0 else 16 / 18) * (17 / 18 if x == 0 else 16 / 18)
        torch.testing.assert_close(found[:, y, x], k[:, 2 * y, 2 * x] * inside)


@pytest.mark.parametrize("case", [((3, 3), (1, 1), (1, 1), (1, 1)), ((5, 3), (1, 1), (2, 1), (1, 1))])
def test_padding_makes_borders_differ_without_borders_too(case):
    """A kernel that is the same for all pairs varies over sites after padding, and a normalizer divides by that."""
    (torus, exact), size = (window(form, case) for form in ("torus", "exact")), (6, 5)
    by_offset = convolve(torus, torch.ones(2, *size, dtype=torch.float64))[1]
    by_pair = convolve(exact, torch.ones(2, 30, 30, dtype=torch.float64))[1]
    torch.testing.assert_close(by_offset[0, 0], by_pair.diagonal().mean())
    torch.testing.assert_close(by_offset.mean(), by_pair.mean())
    assert by_offset[0, 0] > 1.05 * by_offset.mean()


def test_a_window_that_does_not_fit_says_so():
    with pytest.raises(ValueError, match="does not fit into 6x5"):
        _ = Window(ExactSites(6, 5, 4), (9, 9), (1, 1), (0, 0)).after


@pytest.mark.parametrize("limit", [0, 100])
@pytest.mark.parametrize(("kernel", "stride"), [((3, 3), (2, 2)), ((2, 4), (2, 4)), ((3, 2), (1, 2))])
def test_pooling_by_offsets_is_a_mean_over_pairs_of_taps(kernel, stride, limit):
    """K'[a, b] = mean over taps f, g of K[s (b - a) + g - f], around the torus."""
    w = Window(TorusSites(12, 8, 5, limit), kernel, stride, (0, 0))
    after, taps = w.after, list(itertools.product(range(kernel[0]), range(kernel[1])))
    k = torch.randn(2, 12, 8, dtype=torch.float64)
    # K of an offset is that of the opposite one.
    k = k + k.flip(-1, -2).roll((1, 1), (-2, -1))
    found = pool(w, k)
    places = list(itertools.product(range(after.height), range(after.width)))
    for (i, a), (j, b) in itertools.product(enumerate(places), repeat=2):
        y, x = b[0] - a[0], b[1] - a[1]
        if isinstance(after, TorusSites) and (2 * abs(y) >= after.height or 2 * abs(x) >= after.width):
            continue
        here = found[:, i, j] if isinstance(after, ExactSites) else found[:, y, x]
        pairs = itertools.product(taps, repeat=2)
        seen = [k[:, (stride[0] * y + g[0] - f[0]) % 12, (stride[1] * x + g[1] - f[1]) % 8] for f, g in pairs]
        torch.testing.assert_close(here, torch.stack(seen).mean(0))
