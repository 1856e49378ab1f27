r"""Maps of kernels by windows that slide over images: convolutions, average pooling, and their transposes.

A convolution with independent weights of variance sigma_w^2 / (C |F|) sees the same tap at both ends:

    K'[a, b] = (sigma_w^2 / |F|) sum_f K[s a + f, s b + f]        zero where s a + f is padding

Average pooling sees every pair of taps, K'[a, b] = |F|^-2 sum_{f, g} K[s a + f, s b + g]. Cotangents go through the
transposes. By offsets (torus) a convolution keeps K[s (b - a)], times the share of taps that are padding at neither
end, in the mean over the pairs with this offset: what all sites share varies over them after padding.
Sources: Wei et al. 2019, Eq. (34)-(43); stride, padding and the linear map's base case as in erratum E-MF-10.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.theory.taps import Window, offsets, pooling, taps_inside, valid_share


def convolve(window: Window, kernel: Tensor) -> Tensor:
    """The kernel after a convolution of sigma_w^2 = 1: its mean over the taps, the same tap at both ends."""
    before, after = window.before, window.after
    if before.each_sample or _pointwise(window):
        return kernel
    if not before.has_borders:
        picked = kernel if _steady(window) else kernel.flatten(-2)[..., offsets(window)]
        return picked * valid_share(window)
    if window.whole:
        return kernel.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    padded = _padded(window, kernel)
    convolved = kernel.new_zeros((*kernel.shape[:-2], after.height, after.width, after.height, after.width))
    for rows, columns in _taps(window):
        convolved = convolved + padded[..., rows, columns, rows, columns]
    return convolved.flatten(-4, -3).flatten(-2) / window.taps


def convolve_back(window: Window, g: Tensor) -> Tensor:
    """The cotangent before a convolution of sigma_w^2 = 1: the transpose of `convolve`."""
    before, after = window.before, window.after
    if before.each_sample or _pointwise(window):
        return g
    lead = g.shape[:-2]
    if not before.has_borders:
        if _steady(window):
            return g * valid_share(window)
        # Sums over all pairs are kept: a torus of S sites holds S sum_offset G.
        scale = after.entry_sites / before.count
        weighted = (g * valid_share(window)).flatten(-2) * scale
        sent = g.new_zeros((*lead, before.count))
        return sent.index_add(-1, offsets(window).flatten(), weighted).unflatten(-1, (before.height, before.width))
    if window.whole:
        return torch.eye(before.count, dtype=g.dtype) * g / window.taps
    size = (before.height + 2 * window.padding[0], before.width + 2 * window.padding[1])
    sent = g.new_zeros((*lead, *size, *size))
    spread = g.unflatten(-1, (after.height, after.width)).unflatten(-3, (after.height, after.width)) / window.taps
    for rows, columns in _taps(window):
        sent[..., rows, columns, rows, columns] += spread
    return _cropped(window, sent)


def pool(window: Window, kernel: Tensor) -> Tensor:
    """The kernel after average pooling: its mean over all pairs of taps, with padding as zeros."""
    before, after = window.before, window.after
    if before.each_sample or _pointwise(window):
        return kernel
    if window.whole:
        return kernel.mean(dim=(-2, -1), keepdim=True)
    if not before.has_borders:
        rows, columns = (pooling(window, axis) for axis in (0, 1))
        pooled = rows @ kernel @ columns.T
        return _swapped(pooled, (after.height,) * 2, (after.width,) * 2) if after.has_borders else pooled
    height, width = before.height, before.width
    lead = kernel.shape[:-2]
    once = _pooled(kernel.reshape(-1, 1, height, width), window).reshape(*lead, height * width, after.count)
    twice = _pooled(once.transpose(-1, -2).reshape(-1, 1, height, width), window)
    return twice.reshape(*lead, after.count, after.count).transpose(-1, -2)


def pool_back(window: Window, g: Tensor) -> Tensor:
    """The cotangent before average pooling: the transpose of `pool`."""
    before, after = window.before, window.after
    if before.each_sample or _pointwise(window):
        return g
    lead = g.shape[:-2]
    if window.whole:
        size = (before.count, before.count) if before.has_borders else (before.height, before.width)
        return g.expand(*lead, *size) / before.count**2
    if not before.has_borders:
        scale = after.entry_sites / before.count
        rows, columns = (pooling(window, axis) for axis in (0, 1))
        places = (after.height, after.width)
        return rows.T @ (_swapped(g, places, places) if after.has_borders else g) @ columns * scale
    once = _spread(g.reshape(-1, 1, after.height, after.width), window)
    once = once.reshape(*lead, after.count, before.count).transpose(-1, -2)
    twice = _spread(once.reshape(-1, 1, after.height, after.width), window)
    return twice.reshape(*lead, before.count, before.count).transpose(-1, -2)


def place(window: Window, values: Tensor) -> Tensor:
    """A number of each place, such as a mean, after average pooling."""
    before, after = window.before, window.after
    if before.each_sample:
        return values
    if not before.has_borders:
        inside = taps_inside(window)
        return values * (inside if after.has_borders else inside.mean())
    return _pooled(values.reshape(1, 1, before.height, before.width), window).flatten()


def _pointwise(window: Window) -> bool:
    """Whether the window leaves the sites as they are; a window of one place may still change the form to exact."""
    alone = window.kernel == (1, 1) and window.stride == (1, 1) and window.padding == (0, 0)
    return alone and type(window.before) is type(window.after)


def _steady(window: Window) -> bool:
    """Whether every offset of the torus stays where it is."""
    return window.stride == (1, 1) and window.before == window.after


def _taps(window: Window) -> list[tuple[slice, slice]]:
    after, (sy, sx), (dy, dx) = window.after, window.stride, window.dilation
    return [
        (
            slice(dy * y, dy * y + sy * (after.height - 1) + 1, sy),
            slice(dx * x, dx * x + sx * (after.width - 1) + 1, sx),
        )
        for y in range(window.kernel[0])
        for x in range(window.kernel[1])
    ]


def _padded(window: Window, kernel: Tensor) -> Tensor:
    height, width = window.before.height, window.before.width
    wide = kernel.unflatten(-1, (height, width)).unflatten(-3, (height, width))
    py, px = window.padding
    return F.pad(wide, (px, px, py, py, px, px, py, py)) if py or px else wide


def _cropped(window: Window, wide: Tensor) -> Tensor:
    (py, px), height, width = window.padding, window.before.height, window.before.width
    rows, columns = slice(py, py + height), slice(px, px + width)
    return wide[..., rows, columns, rows, columns].flatten(-4, -3).flatten(-2)


def _swapped(pairs: Tensor, left: tuple[int, int], right: tuple[int, int]) -> Tensor:
    """Pairs of rows by pairs of columns as pairs of sites, or the other way round."""
    return pairs.unflatten(-1, right).unflatten(-3, left).transpose(-2, -3).flatten(-4, -3).flatten(-2)


def _pooled(images: Tensor, window: Window) -> Tensor:
    return F.avg_pool2d(images, window.kernel, window.stride, window.padding)


def _spread(images: Tensor, window: Window) -> Tensor:
    before, after = window.before, window.after
    weight = images.new_full((1, 1, *window.kernel), 1 / window.taps)
    extra = tuple(
        n + 2 * p - (s * (a - 1) + k)
        for n, a, k, s, p in zip(
            (before.height, before.width),
            (after.height, after.width),
            window.kernel,
            window.stride,
            window.padding,
            strict=True,
        )
    )
    return F.conv_transpose2d(images, weight, stride=window.stride, padding=window.padding, output_padding=extra)
