r"""Windows that slide over images, on kernels: convolutions, average pooling, and their transposes for cotangents.

A convolution with independent weights of variance sigma_w^2 / (C |F|) sees the same tap at both ends:

    K'[a, b] = (sigma_w^2 / |F|) sum_f K[s a + f, s b + f]        zero where s a + f is padding

Average pooling sees every pair of taps, K'[a, b] = |F|^-2 sum_{f, g} K[s a + f, s b + g]. Cotangents go through the
transposes. By offsets (torus) a convolution keeps K[s (b - a)], times the mean share of taps that are not padding.
Sources: seed 002, Eq. (34)-(43); stride, padding and the linear map's base case as in erratum E-MF-10.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.theory.sites import Sites


@dataclass(frozen=True)
class Window:
    """Height and width of each; the output sites are those of torch's layers."""

    before: Sites
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int] = (1, 1)

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def whole(self) -> bool:
        """Whether it covers all sites at once, as a linear map or a mean over the image does."""
        return self.kernel == (self.before.height, self.before.width) and self.padding == (0, 0)

    @cached_property
    def after(self) -> Sites:
        size = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(
                (self.before.height, self.before.width),
                self.kernel,
                self.stride,
                self.padding,
                self.dilation,
                strict=True,
            )
        ]
        if min(size) < 1:
            raise ValueError(
                f"a window of {self.kernel[0]}x{self.kernel[1]} does not fit into "
                f"{self.before.height}x{self.before.width} sites with padding {self.padding[0]}x{self.padding[1]}"
            )
        return self.before.smaller(*size)


def convolve(window: Window, kernel: Tensor) -> Tensor:
    """Mean over the taps; sigma_w^2 is the caller's."""
    before, after = window.before, window.after
    if before.form == "samples" or _pointwise(window):
        return kernel
    if before.form == "torus":
        picked = kernel.flatten(-2)[..., _offsets(window)]
        return picked * _valid(window)
    if window.whole:
        return kernel.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    padded = _padded(window, kernel)
    found = kernel.new_zeros((*kernel.shape[:-2], after.height, after.width, after.height, after.width))
    for rows, columns in _taps(window):
        found = found + padded[..., rows, columns, rows, columns]
    return found.flatten(-4, -3).flatten(-2) / window.taps


def convolve_back(window: Window, g: Tensor) -> Tensor:
    """Transpose of `convolve`."""
    before, after = window.before, window.after
    if before.form == "samples" or _pointwise(window):
        return g
    lead = g.shape[:-2]
    if before.form == "torus":
        # Sums over all pairs are kept: a torus of S sites holds S sum_offset G.
        scale = (after.count if after.form == "torus" else 1) / before.count
        weighted = (g * _valid(window)).flatten(-2) * scale
        found = g.new_zeros((*lead, before.count))
        return found.index_add(-1, _offsets(window).flatten(), weighted).unflatten(-1, (before.height, before.width))
    if window.whole:
        return torch.eye(before.count, dtype=g.dtype) * g / window.taps
    size = (before.height + 2 * window.padding[0], before.width + 2 * window.padding[1])
    found = g.new_zeros((*lead, *size, *size))
    spread = g.unflatten(-1, (after.height, after.width)).unflatten(-3, (after.height, after.width)) / window.taps
    for rows, columns in _taps(window):
        found[..., rows, columns, rows, columns] += spread
    return _cropped(window, found)


def pool(window: Window, kernel: Tensor) -> Tensor:
    """Mean over all pairs of taps; padding counts as zeros."""
    before, after = window.before, window.after
    if before.form == "samples" or _pointwise(window):
        return kernel
    if window.whole:
        return kernel.mean(dim=(-2, -1), keepdim=True)
    if before.form == "torus":
        return _smoothed(window, kernel).flatten(-2)[..., _offsets(window)]
    height, width = before.height, before.width
    lead = kernel.shape[:-2]
    once = _pooled(kernel.reshape(-1, 1, height, width), window).reshape(*lead, height * width, after.count)
    twice = _pooled(once.transpose(-1, -2).reshape(-1, 1, height, width), window)
    return twice.reshape(*lead, after.count, after.count).transpose(-1, -2)


def pool_back(window: Window, g: Tensor) -> Tensor:
    """Transpose of `pool`."""
    before, after = window.before, window.after
    if before.form == "samples" or _pointwise(window):
        return g
    lead = g.shape[:-2]
    if window.whole:
        size = (before.height, before.width) if before.form == "torus" else (before.count, before.count)
        return g.expand(*lead, *size) / before.count**2
    if before.form == "torus":
        scale = (after.count if after.form == "torus" else 1) / before.count
        found = g.new_zeros((*lead, before.count))
        found = found.index_add(-1, _offsets(window).flatten(), g.flatten(-2) * scale)
        return _smoothed(window, found.unflatten(-1, (before.height, before.width)))
    once = _spread(g.reshape(-1, 1, after.height, after.width), window)
    once = once.reshape(*lead, after.count, before.count).transpose(-1, -2)
    twice = _spread(once.reshape(-1, 1, after.height, after.width), window)
    return twice.reshape(*lead, before.count, before.count).transpose(-1, -2)


def place(window: Window, values: Tensor, *, averaged: bool) -> Tensor:
    """A number of each place (a mean) through average pooling; zero through a convolution."""
    after = window.after
    if after.form == "torus" or window.before.form == "samples":
        return values if averaged else torch.zeros_like(values)
    if not averaged or window.before.form == "torus":
        return values.new_zeros(after.count) + (values if averaged else 0)
    return _pooled(values.reshape(1, 1, window.before.height, window.before.width), window).flatten()


def _pointwise(window: Window) -> bool:
    """Whether it leaves the sites as they are; a small image becomes exact even in a window of one place."""
    alone = window.kernel == (1, 1) and window.stride == (1, 1) and window.padding == (0, 0)
    return alone and window.before.form == window.after.form


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


def _axis_offsets(n: int, count: int, stride: int, exact: bool) -> Tensor:
    """Offsets before the window for each offset after it (torus), or for each pair of sites after it (exact)."""
    at = torch.arange(count)
    if exact:
        return (stride * (at[None, :] - at[:, None])) % n
    signed = torch.where(at > count // 2, at - count, at)
    return (stride * signed) % n


@lru_cache(maxsize=64)
def _offsets(window: Window) -> Tensor:
    """Into the flattened torus: (H', W') or (S', S')."""
    before, after = window.before, window.after
    exact = after.form == "exact"
    rows = _axis_offsets(before.height, after.height, window.stride[0], exact)
    columns = _axis_offsets(before.width, after.width, window.stride[1], exact)
    if not exact:
        return rows[:, None] * before.width + columns[None, :]
    both = rows[:, None, :, None] * before.width + columns[None, :, None, :]
    return both.reshape(after.count, after.count)


def _axis_valid(window: Window, axis: int, exact: bool) -> Tensor:
    """Share of taps that lie inside at both ends: for each pair (exact) or on average (torus)."""
    n = (window.before.height, window.before.width)[axis]
    count, k = (window.after.height, window.after.width)[axis], window.kernel[axis]
    taps = window.dilation[axis] * torch.arange(k) - window.padding[axis]
    position = window.stride[axis] * torch.arange(count)[:, None] + taps[None, :]
    inside = ((position >= 0) & (position < n)).double()
    return inside @ inside.T / k if exact else inside.mean()


@lru_cache(maxsize=64)
def _valid(window: Window) -> Tensor:
    after = window.after
    exact = after.form == "exact"
    rows, columns = (_axis_valid(window, axis, exact) for axis in (0, 1))
    if not exact:
        return rows * columns
    return (rows[:, None, :, None] * columns[None, :, None, :]).reshape(after.count, after.count)


@lru_cache(maxsize=64)
def taps_inside(window: Window) -> Tensor:
    """For each window, in order: the share of its taps that are no padding."""
    rows, columns = (_axis_valid(window, axis, True).diagonal() for axis in (0, 1))
    return (rows[:, None] * columns[None, :]).flatten()


def _smoothed(window: Window, kernel: Tensor) -> Tensor:
    """Mean over the differences g - f of all pairs of taps; each axis by itself, its own transpose."""
    for axis, k in zip((-2, -1), window.kernel, strict=True):
        shares = [(d, (k - abs(d)) / k**2) for d in range(1 - k, k)]
        kernel = torch.stack([share * kernel.roll(d, dims=axis) for d, share in shares]).sum(0)
    return kernel


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
