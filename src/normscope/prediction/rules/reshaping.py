"""The rules of flattening, viewing and indexing, which leave all values as they are."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from normscope.prediction.kernels.cotangent import Cotangent
from normscope.prediction.kernels.field import INPUTS, Field
from normscope.prediction.refusals import UnknownOperation
from normscope.prediction.rules.registry import rule
from normscope.prediction.walk import Walk


@rule("flatten", modules=[nn.Flatten], settings=("start_dim", "end_dim"))
def flatten(walk: Walk, name: str, x: Field, start_dim: int = 0, end_dim: int = -1) -> Field:
    """Axes merged into one, with the arguments of torch.flatten."""
    start, end = (_axis(x, dim) for dim in (start_dim, end_dim))
    sizes = x.size()
    if start == 0 and math.prod(sizes[1 : end + 1]) != 1:
        raise UnknownOperation(
            f"flattens dimensions {start_dim} to {end_dim} of {x.said()}, which mixes samples; there is a map for all "
            "but the batch"
        )
    merged = (*sizes[:start], math.prod(sizes[start : end + 1]), *sizes[end + 1 :])
    return reshape(walk, x, merged[1:])


@rule("view", "reshape", exported=["_unsafe_view"])
def view(walk: Walk, name: str, x: Field, *shape: Any) -> Field:
    """A tensor in another shape, with the arguments of Tensor.view and torch.reshape."""
    wanted = list(shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list, torch.Size)) else shape)
    if wanted.count(-1) == 1:
        known = math.prod(n for n in wanted if n != -1)
        wanted[wanted.index(-1)] = math.prod(x.size()) // max(known, 1)
    if wanted[0] != x.sites.batch or math.prod(wanted) != math.prod(x.size()):
        raise ValueError(f"reshapes {x.said()} to {tuple(shape)}, which mixes samples or does not fit")
    return reshape(walk, x, tuple(int(n) for n in wanted[1:]))


@rule("squeeze")
def squeeze(walk: Walk, name: str, x: Field, dim: Any = None) -> Field:
    """A tensor without axes of size one."""
    dims = range(len(x.shape) + 1) if dim is None else ([dim] if isinstance(dim, int) else dim)
    drop = {_axis(x, d) for d in dims}
    return reshape(walk, x, tuple(n for i, n in enumerate(x.shape, 1) if not (i in drop and n == 1)))


@rule("unsqueeze")
def unsqueeze(walk: Walk, name: str, x: Field, dim: int) -> Field:
    """A tensor with one more axis of size one."""
    axis = _axis(x, dim, more=1)
    if axis == 0:
        raise UnknownOperation(f"puts an axis before the batch of {x.said()}, which has no map here")
    return reshape(walk, x, (*x.shape[: axis - 1], 1, *x.shape[axis - 1 :]))


@rule("select")
def select(walk: Walk, name: str, x: Field, dim: int, index: int) -> Field:
    """One index along one axis, where the axis has size one."""
    return getitem(walk, name, x, (slice(None),) * _axis(x, dim) + (index,))


@rule("getitem")
def getitem(walk: Walk, name: str, x: Field, index: Any) -> Field:
    """Indexing that takes all there is, such as x[:, 0] of (N, 1) and x[..., None]."""
    indices = list(index) if isinstance(index, tuple) else [index]
    free = len(x.size()) - sum(each is not None and each is not Ellipsis for each in indices)
    place = next((i for i, each in enumerate(indices) if each is Ellipsis), len(indices))
    indices[place : place + 1] = [slice(None)] * free
    sizes, shape = list(x.size()), []
    for each in indices:
        if each is None:
            shape.append(1)
        elif isinstance(each, slice) and each == slice(None):
            shape.append(sizes.pop(0))
        elif isinstance(each, int) and len(sizes) < len(x.size()) and sizes.pop(0) == 1 and each in (0, -1):
            continue
        else:
            raise UnknownOperation(f"takes a part of {x.said()}, which has no map here")
    if shape[0] != x.sites.batch:
        raise UnknownOperation(f"puts an axis before the batch of {x.said()}, which has no map here")
    return reshape(walk, x, tuple(shape[1:]))


def _axis(x: Field, dim: int, more: int = 0) -> int:
    """Counted from the front, where torch would take it."""
    axes = len(x.shape) + 1 + more
    if not -axes <= dim < axes:
        raise UnknownOperation(f"asks for dimension {dim} of {x.said()}")
    return dim % axes


def transposed(walk: Walk, x: Field) -> Field:
    """A column of sites as a line, or a line as a column."""
    transpose = x.sites.transpose
    parts = tuple(
        replace(p, kernel=kernel, tangent=transpose(p.tangent), readers=p.readers_of(kernel))
        for p, kernel in ((p, transpose(p.kernel)) for p in x.parts)
    )
    out = Field(x.sites.transposed(), parts, x.shape, x.gaussian, x.roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        g, bend, held = (
            tuple(map(transpose, of)) for of in (cotangent.g, cotangent.bend, cotangent.held_gradient_and_drift)
        )
        return [Cotangent(g, bend, held, cotangent.spread, origin=cotangent.origin)]

    return walk.tape.record(out, [x], back)


def reshape(walk: Walk, x: Field, shape: tuple[int, ...]) -> Field:
    """Another shape: flattened, or with axes of size one more or less.

    (N, C, 1, 1) may become (N, C), (N, C, H, 1) may become (N, C, H), and (N, 1) may become (N,). The channels
    stay in their axis, so that (N, 28, 28), 28 channels here, does not become an image of one channel.
    """
    if shape == x.shape:
        return x
    size = math.prod(x.shape)
    if shape == (size,):
        return same_values(walk, x, shape)
    # A flattened image has its channels and sites in one axis.
    kept = x.shape[:1] in ((), (x.channels,)) and shape[:1] == (x.channels,) and len(shape) < 4
    if size == math.prod(shape) and (not shape or (kept and _long(shape) == _long(x.shape))):
        height, width = (1, 1, *shape[1:])[-2:]
        same_sites = (height, width) == (x.sites.height, x.sites.width)
        return same_values(walk, x if same_sites else transposed(walk, x), shape)
    said = f"reshapes {x.said()} to {replace(x, shape=shape).said()}, which has no map here"
    if x.roots == {INPUTS} and len(shape) < 4:
        said += f". Where a network shapes its own input, pass that shape: input_shape={shape}"
    raise UnknownOperation(said)


def _long(shape: tuple[int, ...]) -> list[int]:
    """Sizes of the sites' axes that are longer than one."""
    return [n for n in shape[1:] if n > 1]


def same_values(walk: Walk, x: Field, shape: tuple[int, ...]) -> Field:
    """The same values in another shape."""
    out = Field(x.sites, x.parts, shape, x.gaussian, x.roots)
    return walk.tape.record(out, [x], lambda cotangent: [cotangent])
