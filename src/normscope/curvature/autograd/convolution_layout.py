r"""The layout in memory of a convolution's input: the order of entries in which torch's kernels are fastest.

On a CPU torch's kernels are a quarter to a half faster with channels last, above all in derivatives. One convolution of
3x3, stride 2, from 30 channels of 15x15 to 60 channels, batch 256, on one core:

    pass               usual order    channels last
    forward            6.3 ms         4.3 ms
    by the input       12.5 ms        8.4 ms
    by the weights     9.9 ms         7.7 ms

The output of a forward keeps its usual order: the user's code may view it. The input is put in order once for all
products.

With stride an input has few patches. A convolution with other weights, and a sum over the patches, are then products
with one matrix P that is kept. The derivative with respect to the weights takes 5.2 ms instead of 7.7 ms; from 60
channels of 7x7 to 90 channels, 2.6 ms instead of 6.0 ms.

    P[(n, i, j), (k, l, c)] = x[n, c, s i + d k, t j + e l],    x * W + b = P W^T + b,    dL/dW = g^T P
"""

from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

_convolution = torch.ops.aten.convolution
_convolution_backward = torch.ops.aten.convolution_backward

# Largest size of the patches, in sizes of the input: they have 9/4 for a kernel of 3x3 at stride 2, 9 at stride 1.
_PATCHES = 3
# Pixels of an image up to which one product for all samples pays in float64.
_SMALL_IMAGE = 100


class Image:
    """The input x of convolutions with `settings`, as torch's operator takes them, and weights of one shape."""

    def __init__(self, x: Tensor, shape: torch.Size, settings: tuple[Any, ...]) -> None:
        self.x, self._shape, self.settings = x, shape, settings

    def alike(self, v: Tensor) -> Self:
        """Another input with the same settings and weights of the same shape."""
        return type(self)(v, self._shape, self.settings)

    def ordered(self, t: Tensor) -> Tensor:
        """The tensor in the order of this input."""
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
    """An input of two dimensions of space, in one group; its derivatives cannot be differentiated."""

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
        """dL/dW; the patches are made here and kept, since a single product with weights does not pay for them."""
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
        """The patches, one a row."""
        (s, t), (a, b), (d, e), *_ = self.settings
        rows = self.x.permute(0, 2, 3, 1)
        rows = F.pad(rows, (0, 0, b, b, a, a)) if a or b else rows
        # The strides of the padded input as well: where a side has length 1, torch may report another order.
        sample, row, column, channel = rows.stride()
        shape = (len(rows), *self._sides, *self._shape[2:], rows.shape[3])
        views = rows.as_strided(shape, (sample, s * row, t * column, d * row, e * column, channel))
        return views.reshape(-1, self._shape[1:].numel())


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, settings: tuple[Any, ...]) -> Tensor:
    """x * W + b; small images in float64 on a CPU take one matrix product for all samples.

    Torch takes one product for each sample there and needs 51 ms instead of 23 ms for 4x4
    and 29 ms instead of 7 ms for 2x2 (16 samples of 512 channels).
    """
    stride, padding, dilation, transposed, _, groups = settings
    plain = x.dtype == torch.float64 and x.device.type == "cpu" and x.ndim == 4 and groups == 1 and not transposed
    if not plain or not 0 < x[0, 0].numel() <= _SMALL_IMAGE or not len(x):
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
