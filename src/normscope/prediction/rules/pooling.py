"""The rules of average pooling and of means over sites."""

from typing import Any

from torch import nn

from normscope.prediction.kernels.cotangent import Cotangent
from normscope.prediction.kernels.field import Field, FieldPart
from normscope.prediction.refusals import UnknownOperation
from normscope.prediction.rules.registry import rule
from normscope.prediction.rules.reshaping import same_values, transposed
from normscope.prediction.rules.windows import pooling_window
from normscope.prediction.walk import Walk
from normscope.theory.convolved_kernels import place, pool, pool_back
from normscope.theory.taps import Window

# Padded windows from which on the lack of borders was seen to matter.
_MOST_PADDED_WINDOWS = 5


def _settings(layer: nn.AvgPool1d | nn.AvgPool2d, x: Field) -> dict[str, Any]:
    arguments = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
    return {each: getattr(layer, each) for each in arguments} | {
        "divisor_override": getattr(layer, "divisor_override", None)
    }


@rule(
    "avg_pool1d",
    "avg_pool2d",
    modules=[nn.AvgPool1d, nn.AvgPool2d],
    settings=_settings,
)
def average_pooling(
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
    """Average pooling, with torch's arguments."""
    window = pooling_window(x, kernel_size, stride, padding, 1, ceil_mode)
    if divisor_override is not None or (not count_include_pad and max(window.padding)):
        raise UnknownOperation("divides by other numbers than its window has places, which has no map here")
    return average_pool(walk, x, window)


@rule(
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    modules=[nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d],
    settings=("output_size",),
)
def adaptive_average_pooling(walk: Walk, name: str, x: Field, output_size: Any) -> Field:
    """Average pooling to a given size, in windows of one size."""
    dims = len(x.shape) - 1
    wanted = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * dims
    sizes = x.shape[1:]
    target = [s if w is None else int(w) for w, s in zip(wanted, sizes, strict=True)]
    if any(s % t for s, t in zip(sizes, target, strict=True)):
        raise UnknownOperation(
            f"pools {sizes} adaptively to {tuple(target)}, in windows of different sizes, which has no map here"
        )
    kernel = tuple(s // t for s, t in zip(sizes, target, strict=True))
    return average_pool(walk, x, pooling_window(x, kernel, None, 0, 1, False))


def average_pool(walk: Walk, x: Field, window: Window, *, flat: bool = False) -> Field:
    """Mean over all pairs of taps; flat: the result has no dimensions of space left."""
    after = window.after
    if not window.before.has_borders and any(window.padding) and max(window.kernel) >= _MOST_PADDED_WINDOWS:
        walk.remarks.warn(
            f"Average pooling pads windows of {window.kernel[0]}x{window.kernel[1]} on images that are taken without "
            "their borders: lambda_max was seen to be 5 % too low with windows of 5 and 20 % with windows of 7, and "
            "eta* as much too high. Measure to be sure.",
            (0.9, 1.25),
        )
    parts = tuple(
        FieldPart(
            part.channels,
            kernel,
            place(window, part.mean),
            pool(window, part.tangent),
            part.noise / window.taps**2,
            length=part.length,
            overlap_variance=part.overlap_variance,
            readers=part.readers_of(kernel),
        )
        for part, kernel in ((part, pool(window, part.kernel)) for part in x.parts)
    )
    space = {0: (), 1: (after.width,), 2: (after.height, after.width)}[0 if flat else len(x.shape) - 1]
    gaussian = x.gaussian or window.taps == 1
    out = Field(after, parts, (x.channels, *space), gaussian, x.roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        g, bend, held = (
            tuple(pool_back(window, of) for of in each)
            for each in (cotangent.g, cotangent.bend, cotangent.held_gradient_and_drift)
        )
        return [Cotangent(g, bend, held, cotangent.spread, origin=cotangent.origin)]

    return walk.tape.record(out, [x], back)


@rule("mean")
def mean(
    walk: Walk, name: str, x: Field, dim: Any = None, keepdim: bool = False, *, axis: Any = None, dtype: Any = None
) -> Field:
    """A mean over sites, with the arguments of torch.mean."""
    dim = axis if dim is None else dim
    dims = tuple(sorted(d % (len(x.shape) + 1) for d in ([dim] if isinstance(dim, int) else dim or ())))
    if not dims or dims[0] < 2:
        raise UnknownOperation(f"takes a mean over dimensions {dim}; there is a map for means over sites")
    return _mean_of(walk, x, dims, keepdim=keepdim)


def _mean_of(walk: Walk, x: Field, dims: tuple[int, ...], *, keepdim: bool) -> Field:
    """Over some or all dimensions of sites, counted as torch does, from 2 on."""
    if x.flat:
        raise UnknownOperation("takes a mean over features, which has no map here")
    height, width = x.sites.height, x.sites.width
    whole = len(dims) == len(x.shape) - 1
    kernel = (height, width) if whole else (height, 1) if dims == (2,) else (1, width)
    window = Window(x.sites, kernel, (1, 1), (0, 0))
    if whole or keepdim:
        return average_pool(walk, x, window, flat=whole and not keepdim)
    pooled = average_pool(walk, x, window)
    return same_values(walk, pooled if dims == (2,) else transposed(walk, pooled), (x.channels, pooled.sites.count))
