r"""Convolutions as matrix products, which a stack of members turns into batched ones.

    y[n, o, p] = b[o] + sum_{c, i, j} W[o, c, i, j] x[n, c, s p + (i, j) d]

is, for one member, the product of a matrix of patches, (N P, C k k), with the kernel, (C k k, O). The vmapped
convolution is a grouped one, which GPU libraries serve slowly. Patches are stacked shifted slices: their backward is a
sum of slices, without the scattered additions that the backward of `unfold` compiles to.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from normscope.norms import BatchNorm1d, BatchNorm2d, BatchNorm3d

_KERNELS = ((BatchNorm1d, nn.BatchNorm1d), (BatchNorm2d, nn.BatchNorm2d), (BatchNorm3d, nn.BatchNorm3d))
_TAKE_ANY_ORDER = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.BatchNorm1d, nn.ReLU, nn.Flatten, nn.MaxPool2d, nn.Identity)


class ConvAsProduct(nn.Conv2d):
    """A `torch.nn.Conv2d` whose forward is one matrix product; its output has channels last in memory, or first."""

    contiguous: bool
    multiple: int

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        patches, height, width = _patches(input, self)
        kernel = weight.permute(2, 3, 1, 0).reshape(-1, weight.shape[0])
        # Zeros that fill rows up to whole words of 16 bytes, which GPU products are fast for.
        spare, more = -kernel.shape[0] % self.multiple, -kernel.shape[1] % self.multiple
        if spare or more:
            patches, kernel = pad(patches, (0, spare)), pad(kernel, (0, more, 0, spare))
        product = (patches @ kernel)[:, : weight.shape[0]]
        if bias is not None:
            product = product + bias
        output = product.unflatten(0, (input.shape[0], height, width)).permute(0, 3, 1, 2)
        # Run eager on a GPU, torch's BatchNorm asks for the order of its input, which vmap does not answer.
        eager = output.is_cuda and not torch.compiler.is_compiling()
        return output.contiguous() if self.contiguous or eager else output


def _patches(x: Tensor, conv: nn.Conv2d) -> tuple[Tensor, int, int]:
    """(N height width, k k C), a row a place of the output, and the output's size."""
    rows, columns = conv.kernel_size
    if isinstance(conv.padding, str):
        before, after = conv._reversed_padding_repeated_twice[::2], conv._reversed_padding_repeated_twice[1::2]
        x = pad(x, (before[0], after[0], before[1], after[1])) if conv.padding == "same" else x
    elif any(conv.padding):
        x = pad(x, (conv.padding[1],) * 2 + (conv.padding[0],) * 2)
    (up, right), (far, wide) = conv.stride, conv.dilation
    height = (x.shape[2] - far * (rows - 1) - 1) // up + 1
    width = (x.shape[3] - wide * (columns - 1) - 1) // right + 1
    x = x.permute(0, 2, 3, 1)

    def part(i: int, j: int) -> Tensor:
        i, j = i * far, j * wide
        return x[:, i : i + up * (height - 1) + 1 : up, j : j + right * (width - 1) + 1 : right]

    # Stacked in two levels: a compiler fuses a few inputs into one kernel, but not nine.
    stacked = torch.stack([torch.stack([part(i, j) for j in range(columns)], 3) for i in range(rows)], 3)
    return stacked.reshape(x.shape[0] * height * width, -1), height, width


def lower(model: nn.Module) -> None:
    """Lowers, in place, every plain convolution of `model`.

    Left as they are: groups, padding with anything but zeros, and subclasses with a forward of their own. Outputs stay
    in the order the product has, channels last, where all layers are known to take that: some kernels (GroupNorm's)
    ask for the order of their input, which vmap does not answer.
    """
    layers = [module for module in model.modules() if not any(module.children())]
    contiguous = not all(isinstance(layer, _TAKE_ANY_ORDER) for layer in layers)
    for module in model.modules():
        if type(module) is nn.Conv2d and module.groups == 1 and module.padding_mode == "zeros":
            module.__class__ = ConvAsProduct
            lowered = cast(ConvAsProduct, module)
            lowered.contiguous, lowered.multiple = contiguous, 4 if module.weight.is_cuda else 1


def use_kernels(model: nn.Module) -> None:
    """BatchNorm by torch's kernel, in place: right to first order, which a step is, and faster under an eager vmap.

    Ours are torch's in arguments and state; what only ours can (eps = 0, momentum=None, across processes) stays.
    """
    for module in model.modules():
        for ours, kernel in _KERNELS:
            if type(module) is ours and module.eps > 0 and module.momentum is not None and not module.sync:
                module.__class__ = kernel  # type: ignore[assignment]
