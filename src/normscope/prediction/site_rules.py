"""Pooling, means and reshaping, with the arguments that torch's functions have."""

import math
from typing import Any

import torch

from normscope.prediction import pooling
from normscope.prediction.field import Field
from normscope.prediction.maximum import max_pool
from normscope.prediction.refusal import UnknownOperation
from normscope.prediction.walk import Walk
from normscope.theory.taps import Window


def two(value: Any, dims: int = 2) -> tuple[int, int]:
    """Height and width of an argument that may be one number; along a line the height is 1."""
    if isinstance(value, (tuple, list)):
        return (1, int(value[0])) if len(value) == 1 else (int(value[0]), int(value[1]))
    return (int(value), int(value)) if dims == 2 else (1, int(value))


def average_rule(
    walk: Walk,
    name: str,
    x: Field,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Field:
    window = _window(x, kernel_size, stride, padding, 1, ceil_mode)
    if divisor_override is not None or (not count_include_pad and max(window.padding)):
        raise UnknownOperation("divides by other numbers than its window has places, which has no map here")
    return pooling.average_pool(walk, x, window)


def adaptive_rule(walk: Walk, name: str, x: Field, output_size: Any) -> Field:
    dims = len(x.shape) - 1
    wanted = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * dims
    sizes = x.shape[1:]
    target = [s if w is None else int(w) for w, s in zip(wanted, sizes, strict=True)]
    if any(s % t for s, t in zip(sizes, target, strict=True)):
        raise UnknownOperation(
            f"pools {sizes} adaptively to {tuple(target)}, in windows of different sizes, which has no map here"
        )
    kernel = tuple(s // t for s, t in zip(sizes, target, strict=True))
    return pooling.average_pool(walk, x, _window(x, kernel, None, 0, 1, False))


def maximum_rule(
    walk: Walk,
    name: str,
    x: Field,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Field:
    if any(d != 1 for d in (dilation if isinstance(dilation, (tuple, list)) else (dilation,))):
        raise UnknownOperation("takes maxima over dilated windows, which has no map here. Pool without dilation")
    return max_pool(walk, name, x, _window(x, kernel_size, stride, padding, dilation, ceil_mode))


def _window(x: Field, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Window:
    if len(x.shape) < 2:
        raise ValueError("pools a tensor without dimensions of space")
    dims = len(x.shape) - 1
    k = two(kernel, dims)
    s = k if stride is None or stride == [] else two(stride, dims)
    p = two(padding, dims) if dims == 2 else (0, two(padding, 1)[1])
    if any(2 * n > size for n, size in zip(p, k, strict=True)):
        raise ValueError(f"pads by {p[0]}x{p[1]}, more than half of its window of {k[0]}x{k[1]}, which torch refuses")
    window = Window(x.sites, k, s, p, two(dilation, dims))
    if ceil_mode:
        after, sizes = window.after, (x.sites.height, x.sites.width)
        covered = [(n - 1) * s[i] + k[i] - 2 * p[i] for i, n in enumerate((after.height, after.width))]
        if any(c < n for c, n in zip(covered, sizes, strict=True)):
            raise UnknownOperation("pools with ceil_mode windows that hang over the border, which has no map here")
    return window


def mean_rule(
    walk: Walk, name: str, x: Field, dim: Any = None, keepdim: bool = False, *, axis: Any = None, dtype: Any = None
) -> Field:
    dim = axis if dim is None else dim
    dims = tuple(sorted(d % (len(x.shape) + 1) for d in ([dim] if isinstance(dim, int) else dim or ())))
    if not dims or dims[0] < 2:
        raise UnknownOperation(f"takes a mean over dimensions {dim}; there is a map for means over sites")
    return pooling.mean(walk, x, dims, keepdim=keepdim)


def flatten_rule(walk: Walk, name: str, x: Field, start_dim: int = 0, end_dim: int = -1) -> Field:
    start, end = (_axis(x, dim) for dim in (start_dim, end_dim))
    sizes = x.size()
    if start == 0 and math.prod(sizes[1 : end + 1]) != 1:
        raise UnknownOperation(
            f"flattens dimensions {start_dim} to {end_dim} of {x.said()}, which mixes samples; there is a map for all "
            "but the batch"
        )
    merged = (*sizes[:start], math.prod(sizes[start : end + 1]), *sizes[end + 1 :])
    return pooling.reshape(walk, x, merged[1:])


def view_rule(walk: Walk, name: str, x: Field, *shape: Any) -> Field:
    wanted = list(shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list, torch.Size)) else shape)
    if wanted.count(-1) == 1:
        known = math.prod(n for n in wanted if n != -1)
        wanted[wanted.index(-1)] = math.prod(x.size()) // max(known, 1)
    if wanted[0] != x.sites.batch or math.prod(wanted) != math.prod(x.size()):
        raise ValueError(f"reshapes {x.said()} to {tuple(shape)}, which mixes samples or does not fit")
    return pooling.reshape(walk, x, tuple(int(n) for n in wanted[1:]))


def squeeze_rule(walk: Walk, name: str, x: Field, dim: Any = None) -> Field:
    dims = range(len(x.shape) + 1) if dim is None else ([dim] if isinstance(dim, int) else dim)
    drop = {_axis(x, d) for d in dims}
    return pooling.reshape(walk, x, tuple(n for i, n in enumerate(x.shape, 1) if not (i in drop and n == 1)))


def unsqueeze_rule(walk: Walk, name: str, x: Field, dim: int) -> Field:
    axis = _axis(x, dim, more=1)
    if axis == 0:
        raise UnknownOperation(f"puts an axis before the batch of {x.said()}, which has no map here")
    return pooling.reshape(walk, x, (*x.shape[: axis - 1], 1, *x.shape[axis - 1 :]))


def select_rule(walk: Walk, name: str, x: Field, dim: int, index: int) -> Field:
    return index_rule(walk, name, x, (slice(None),) * _axis(x, dim) + (index,))


def index_rule(walk: Walk, name: str, x: Field, index: Any) -> Field:
    """x[:, 0] of (N, 1), x[..., None]: what takes all there is."""
    given = list(index) if isinstance(index, tuple) else [index]
    free = len(x.size()) - sum(one is not None and one is not Ellipsis for one in given)
    place = next((i for i, one in enumerate(given) if one is Ellipsis), len(given))
    given[place : place + 1] = [slice(None)] * free
    sizes, shape = list(x.size()), []
    for one in given:
        if one is None:
            shape.append(1)
        elif isinstance(one, slice) and one == slice(None):
            shape.append(sizes.pop(0))
        elif isinstance(one, int) and len(sizes) < len(x.size()) and sizes.pop(0) == 1 and one in (0, -1):
            continue
        else:
            raise UnknownOperation(f"takes a part of {x.said()}, which has no map here")
    if shape[0] != x.sites.batch:
        raise UnknownOperation(f"puts an axis before the batch of {x.said()}, which has no map here")
    return pooling.reshape(walk, x, tuple(shape[1:]))


def _axis(x: Field, dim: int, more: int = 0) -> int:
    """Counted from the front, where torch would take it."""
    axes = len(x.shape) + 1 + more
    if not -axes <= dim < axes:
        raise UnknownOperation(f"asks for dimension {dim} of {x.said()}")
    return dim % axes
