"""Windows of pooling and convolutions, from the arguments that torch's functions have."""

from typing import Any

from normscope.prediction.kernels.field import Field
from normscope.prediction.refusals import UnknownOperation
from normscope.theory.taps import Window


def as_pair(value: Any, dims: int = 2) -> tuple[int, int]:
    """Height and width of an argument that may be one number; along a line the height is 1."""
    if isinstance(value, (tuple, list)):
        return (1, int(value[0])) if len(value) == 1 else (int(value[0]), int(value[1]))
    return (int(value), int(value)) if dims == 2 else (1, int(value))


def pooling_window(x: Field, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Window:
    """The window of a pooling layer; refused where torch refuses it or where it hangs over the border."""
    if len(x.shape) < 2:
        raise ValueError("pools a tensor without dimensions of space")
    dims = len(x.shape) - 1
    k = as_pair(kernel, dims)
    s = k if stride is None or stride == [] else as_pair(stride, dims)
    p = as_pair(padding, dims) if dims == 2 else (0, as_pair(padding, 1)[1])
    if any(2 * n > size for n, size in zip(p, k, strict=True)):
        raise ValueError(f"pads by {p[0]}x{p[1]}, more than half of its window of {k[0]}x{k[1]}, which torch refuses")
    window = Window(x.sites, k, s, p, as_pair(dilation, dims))
    if ceil_mode:
        after, sizes = window.after, (x.sites.height, x.sites.width)
        covered = [(n - 1) * s[i] + k[i] - 2 * p[i] for i, n in enumerate((after.height, after.width))]
        if any(c < n for c, n in zip(covered, sizes, strict=True)):
            raise UnknownOperation("pools with ceil_mode windows that hang over the border, which has no map here")
    return window
