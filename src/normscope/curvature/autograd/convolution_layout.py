r"""What a convolution does with its input, in the order in memory that torch's kernels take.

On a CPU they are a quarter to a half faster with channels last, in derivatives most (3x3, stride 2, 30 channels of
15x15 to 60, batch 256, one core: forward 6.3 ms and 4.3, by the input 12.5 and 8.4, by the weights 9.9 and 7.7). What
a forward gives stays in the order it has: the user's may view it. The input is put in order once for all products.

With stride its patches are few, and all that has other weights, or a sum over it, is a product with one matrix that is
kept (by the weights 5.2 ms for 7.7, and 2.6 for 6.0 at 60 channels of 7x7 to 90):

    P[(n, i, j), (k, l, c)] = x[n, c, s i + d k, t j + e l],    x * W + b = P W^T + b,    dL/dW = g^T P
"""

from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

_convolution = torch.ops.aten.convolution
_convolution_backward = torch.ops.aten.convolution_backward

# Of the input's size: 9/4 for a kernel of 3x3 at stride 2, 9 at stride 1.
_PATCHES = 3
# Places of an image up to which one product for all samples pays in float64.
_SMALL = 100


class Image:
    """The input x of convolutions with `settings`, as torch's operator takes them, and weights of one shape."""

    def __init__(self, x: Tensor, shape: torch.Size, settings: tuple[Any, ...]) -> None:
        self.x, self._shape, self.settings = x, shape, settings

    def alike(self, v: Tensor) -> Self:
        """Another input, of the same kind."""
        return type(self)(v, self._shape, self.settings)

    def ordered(self, t: Tensor) -> Tensor:
        return t

    def by(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x * W + b."""
        y: Tensor = _convolution(self.x, weight, bias, *self.settings)
        return y

    def by_input(self, g: Tensor, weight: Tensor) -> Tensor:
        """dL/dx for g = dL/dy, `ordered`."""
        gradient: Tensor = _convolution_backward(g, self.x, weight, None, *self.settings, [True, False, False])[0]
        return gradient

    def by_weight(self, g: Tensor) -> Tensor:
        """dL/dW for g = dL/dy, `ordered`."""
        like = g.new_empty(self._shape)
        gradient: Tensor = _convolution_backward(g, self.x, like, None, *self.settings, [False, True, False])[1]
        return gradient.contiguous()


class ChannelsLast(Image):
    """In two dimensions of space, in one group; derivatives have no derivatives of their own."""

    def __init__(self, x: Tensor, shape: torch.Size, settings: tuple[Any, ...]) -> None:
        super().__init__(self.ordered(x), shape, settings)
        self._patches: Tensor | None = None

    def ordered(self, t: Tensor) -> Tensor:
        return t.contiguous(memory_format=torch.channels_last)

    def by(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self._patches is None:
            return super().by(weight, bias)
        matrix = weight.permute(0, 2, 3, 1).reshape(len(weight), -1).T
        y = self._patches @ matrix if bias is None else torch.addmm(bias, self._patches, matrix)
        return y.view(len(self.x), *self._sides, -1).permute(0, 3, 1, 2)

    def by_weight(self, g: Tensor) -> Tensor:
        """Patches are made here, and kept: a single product with weights does not pay for them."""
        outputs, inputs, *kernel = self._shape
        self._sides = list(g.shape[2:])
        if self._patches is None and self._few():
            self._patches = self._made()
        if self._patches is None:
            return super().by_weight(g)
        gradient = g.permute(0, 2, 3, 1).reshape(-1, outputs).T @ self._patches
        return gradient.view(outputs, *kernel, inputs).permute(0, 3, 1, 2).contiguous()

    def _few(self) -> bool:
        size = self._sides[0] * self._sides[1] * self._shape[2] * self._shape[3]
        return size <= _PATCHES * self.x.shape[2] * self.x.shape[3] and max(self.settings[0]) > 1

    def _made(self) -> Tensor:
        """One a row."""
        (s, t), (a, b), (d, e), *_ = self.settings
        rows = self.x.permute(0, 2, 3, 1)
        rows = F.pad(rows, (0, 0, b, b, a, a)) if a or b else rows
        # Those of the padded too: where a side has length 1, torch may take another order for its own.
        whole, row, column, channel = rows.stride()
        shape = (len(rows), *self._sides, *self._shape[2:], rows.shape[3])
        views = rows.as_strided(shape, (whole, s * row, t * column, d * row, e * column, channel))
        return views.reshape(-1, self._shape[1:].numel())


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, settings: tuple[Any, ...]) -> Tensor:
    """x * W + b; small images in float64 on a CPU take one matrix product for all samples.

    Torch takes one product for each sample there (16 samples of 512 channels: 4x4 in 51 ms for 23, 2x2 in 29 for 7).
    """
    stride, padding, dilation, transposed, _, groups = settings
    plain = x.dtype == torch.float64 and x.device.type == "cpu" and x.ndim == 4 and groups == 1 and not transposed
    if not plain or not 0 < x[0, 0].numel() <= _SMALL or not len(x):
        y: Tensor = _convolution(x, weight, bias, *settings)
        return y
    sizes = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    sides = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes]
    patches = F.unfold(x, weight.shape[2:], dilation=dilation, padding=padding, stride=stride)
    columns = patches.transpose(0, 1).reshape(patches.shape[1], -1)
    product = weight.flatten(1) @ columns
    product = product if bias is None else product + bias.view(-1, 1)
    return product.view(len(weight), len(x), *sides).transpose(0, 1).contiguous()


def image(x: Tensor, shape: torch.Size, settings: tuple[Any, ...]) -> Image:
    """x with channels last where that pays."""
    *_, transposed, _, groups = settings
    pays = x.device.type == "cpu" and x.ndim == 4 and x.shape[1] > 1 and groups == 1 and not transposed
    return (ChannelsLast if pays and x.numel() else Image)(x, shape, settings)
