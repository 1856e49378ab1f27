"""A window that slides over sites: the sizes it makes, and which of its taps lie inside the image."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from normscope.theory.site_pairs import Sites


@dataclass(frozen=True)
class Window:
    """A window over the sites `before`; each size is (height, width), with the meaning of torch's layers."""

    before: Sites
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int] = (1, 1)

    @property
    def taps(self) -> int:
        """Number of taps of the window."""
        return self.kernel[0] * self.kernel[1]

    @property
    def whole(self) -> bool:
        """Whether the window covers all sites at once, as a linear map or a mean over the image does."""
        return self.kernel == (self.before.height, self.before.width) and self.padding == (0, 0)

    @cached_property
    def after(self) -> Sites:
        """The sites that the window makes; refused where torch refuses the window."""
        if min(*self.kernel, *self.stride, *self.dilation) < 1 or min(self.padding) < 0:
            raise ValueError("has a window, stride or dilation below 1, or padding below 0, which torch refuses")
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


def _axis_offsets(n: int, count: int, stride: int, exact: bool) -> Tensor:
    """Offsets before the window for each offset after it (torus), or for each pair of sites after it (exact)."""
    at = torch.arange(count)
    if exact:
        return (stride * (at[None, :] - at[:, None])) % n
    signed = torch.where(at > count // 2, at - count, at)
    return (stride * signed) % n


@lru_cache(maxsize=64)
def offsets(window: Window) -> Tensor:
    """Index into the flattened torus before the window, for each offset (H', W') or pair (S', S') after it."""
    before, after = window.before, window.after
    exact = after.has_borders
    rows = _axis_offsets(before.height, after.height, window.stride[0], exact)
    columns = _axis_offsets(before.width, after.width, window.stride[1], exact)
    if not exact:
        return rows[:, None] * before.width + columns[None, :]
    both = rows[:, None, :, None] * before.width + columns[None, :, None, :]
    return both.reshape(after.count, after.count)


def _axis_valid(window: Window, axis: int, exact: bool) -> Tensor:
    """Share of taps that lie inside at both ends: for each pair (exact) or for each offset, on average (torus)."""
    inside = _axis_inside(window, axis)
    both = inside @ inside.T / inside.shape[1]
    if exact:
        return both
    at = torch.arange(len(both))
    return torch.stack([both[at, (at + offset) % len(at)].mean() for offset in at])


def _axis_inside(window: Window, axis: int) -> Tensor:
    """Windows by taps: 1 for taps inside the image, 0 for padding."""
    position = _axis_positions(window, axis)
    return ((position >= 0) & (position < (window.before.height, window.before.width)[axis])).double()


def _axis_positions(window: Window, axis: int) -> Tensor:
    """Windows by taps: position of each tap along the axis."""
    count, k = (window.after.height, window.after.width)[axis], window.kernel[axis]
    taps = window.dilation[axis] * torch.arange(k) - window.padding[axis]
    return window.stride[axis] * torch.arange(count)[:, None] + taps[None, :]


@lru_cache(maxsize=64)
def valid_share(window: Window) -> Tensor:
    """Share of taps that lie inside the image at both ends, for each offset or pair of sites after the window."""
    after = window.after
    exact = after.has_borders
    rows, columns = (_axis_valid(window, axis, exact) for axis in (0, 1))
    if not exact:
        return rows[:, None] * columns
    return (rows[:, None, :, None] * columns[None, :, None, :]).reshape(after.count, after.count)


@lru_cache(maxsize=64)
def taps_inside(window: Window) -> Tensor:
    """For each window, in order: the share of its taps that lie inside the image."""
    rows, columns = (_axis_valid(window, axis, True).diagonal() for axis in (0, 1))
    return (rows[:, None] * columns[None, :]).flatten()


@lru_cache(maxsize=16)
def membership(window: Window) -> Tensor:
    """Windows by sites: each tap's share of its window."""
    sizes = (window.before.height, window.before.width)
    rows, columns = (_axis_membership(window, axis, n) for axis, n in enumerate(sizes))
    return torch.kron(rows, columns)


def _axis_membership(window: Window, axis: int, n: int) -> Tensor:
    """Windows by positions along an axis: each tap's share of its window."""
    at = _axis_positions(window, axis)
    return (at[..., None] == torch.arange(n)).double().mean(1)


@lru_cache(maxsize=64)
def mean_inside(window: Window) -> float:
    """Mean of `taps_inside` over all windows."""
    return float(taps_inside(window).mean())


@lru_cache(maxsize=64)
def shares_of_pairs(window: Window, axis: int) -> Tensor:
    """For each difference 1 - k ... k - 1 of two taps along an axis: the share of pairs of taps that lie inside."""
    inside = _axis_inside(window, axis)
    k = inside.shape[1]
    both = inside.T @ inside / (len(inside) * k * k)
    return torch.stack([both.diagonal(d).sum() for d in range(1 - k, k)])


@lru_cache(maxsize=16)
def pooling(window: Window, axis: int) -> Tensor:
    """`shares_of_pairs` as a matrix: offsets or pairs of sites after the window, by offsets of the torus before it."""
    n, k = (window.before.height, window.before.width)[axis], window.kernel[axis]
    count = (window.after.height, window.after.width)[axis]
    at = _axis_offsets(n, count, window.stride[axis], window.after.has_borders).flatten()
    matrix = torch.zeros(len(at), n, dtype=torch.float64)
    for d, share in zip(range(1 - k, k), shares_of_pairs(window, axis), strict=True):
        matrix[torch.arange(len(at)), (at + d) % n] += share
    return matrix
