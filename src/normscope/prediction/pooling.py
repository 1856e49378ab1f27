"""Average pooling and means over the image; flattening."""

import math
from dataclasses import replace

from torch import Tensor

from normscope.prediction.field import INPUTS, Cotangent, Field, Part
from normscope.prediction.refusal import UnknownOperation
from normscope.prediction.walk import Walk
from normscope.theory.convolved_kernels import place, pool, pool_back
from normscope.theory.taps import Window

# Padded windows from which on the lack of borders was seen to matter.
_WIDE = 5


def average_pool(walk: Walk, x: Field, window: Window, *, flat: bool = False) -> Field:
    """Mean over all pairs of taps; flat: the result has no dimensions of space left."""
    after = window.after
    if window.before.form == "torus" and any(window.padding) and max(window.kernel) >= _WIDE:
        walk.warn(
            f"Average pooling pads windows of {window.kernel[0]}x{window.kernel[1]} on images that are taken without "
            "their borders: lambda_max was seen to be 5 % too low with windows of 5 and 20 % with windows of 7, and "
            "eta* as much too high. Measure to be sure.",
            (0.9, 1.25),
        )
    parts = tuple(
        Part(
            part.channels,
            pool(window, part.kernel),
            place(window, part.mean),
            pool(window, part.tangent),
            part.noise / window.taps**2,
            length=part.length,
            tilt=part.tilt,
        )
        for part in x.parts
    )
    space = {0: (), 1: (after.width,), 2: (after.height, after.width)}[0 if flat else len(x.shape) - 1]
    gaussian = x.gaussian or window.taps == 1
    out = Field(after, parts, (x.channels, *space), gaussian, x.roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        g, bend, two = (
            tuple(pool_back(window, of) for of in each) for each in (cotangent.g, cotangent.bend, cotangent.two)
        )
        return [Cotangent(g, bend, two, cotangent.spread, origin=cotangent.origin)]

    return walk.record(out, [x], back)


def mean(walk: Walk, x: Field, dims: tuple[int, ...], *, keepdim: bool) -> Field:
    """Over some or all dimensions of sites, counted as torch does, from 2 on."""
    if x.flat:
        raise UnknownOperation("takes a mean over features, which has no map here")
    height, width = x.sites.height, x.sites.width
    whole = len(dims) == len(x.shape) - 1
    kernel = (height, width) if whole else (height, 1) if dims == (2,) else (1, width)
    window = Window(x.sites, kernel, (1, 1), (0, 0))
    if whole or keepdim:
        return average_pool(walk, x, window, flat=whole and not keepdim)
    found = average_pool(walk, x, window)
    return _as(walk, found if dims == (2,) else _turned(walk, found), (x.channels, found.sites.count))


def _turned(walk: Walk, x: Field) -> Field:
    """A column of sites as a line, or a line as a column."""

    def turn(kernel: Tensor) -> Tensor:
        return kernel.transpose(-1, -2) if x.sites.form == "torus" else kernel

    sites = replace(x.sites, height=x.sites.width, width=x.sites.height)
    parts = tuple(replace(p, kernel=turn(p.kernel), tangent=turn(p.tangent)) for p in x.parts)
    out = Field(sites, parts, x.shape, x.gaussian, x.roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        g, bend, two = (tuple(map(turn, of)) for of in (cotangent.g, cotangent.bend, cotangent.two))
        return [Cotangent(g, bend, two, cotangent.spread, origin=cotangent.origin)]

    return walk.record(out, [x], back)


def reshape(walk: Walk, x: Field, shape: tuple[int, ...]) -> Field:
    """Flattening, and axes of size one more or less: (N, C, 1, 1) as (N, C), (N, C, H, 1) as (N, C, H), (N, 1) as (N,).

    The channels stay in their axis, so that (N, 28, 28), 28 channels here, does not become an image of one.
    """
    if shape == x.shape:
        return x
    size = math.prod(x.shape)
    if shape == (size,):
        return _as(walk, x, shape)
    # A flattened image has its channels and sites in one axis.
    kept = x.shape[:1] in ((), (x.channels,)) and shape[:1] == (x.channels,) and len(shape) < 4
    if size == math.prod(shape) and (not shape or (kept and _long(shape) == _long(x.shape))):
        height, width = (1, 1, *shape[1:])[-2:]
        return _as(walk, x if (height, width) == (x.sites.height, x.sites.width) else _turned(walk, x), shape)
    said = f"reshapes {x.said()} to {replace(x, shape=shape).said()}, which has no map here"
    if x.roots == {INPUTS} and len(shape) < 4:
        said += f". Where a network shapes its own input, pass that shape: input_shape={shape}"
    raise UnknownOperation(said)


def _long(shape: tuple[int, ...]) -> list[int]:
    """Sizes of the sites' axes that are longer than one."""
    return [n for n in shape[1:] if n > 1]


def _as(walk: Walk, x: Field, shape: tuple[int, ...]) -> Field:
    """The same values in another shape."""
    out = Field(x.sites, x.parts, shape, x.gaussian, x.roots)
    return walk.record(out, [x], lambda cotangent: [cotangent])
