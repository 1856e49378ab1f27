r"""Convolutions as matrix products, which a stack of members turns into batched ones.

    y[n, o, p] = b[o] + sum_{c, i, j} W[o, c, i, j] x[n, c, s p + (i, j) d]

is, for one member, the product of a matrix of patches, (N P, C k k), with the kernel, (C k k, O). The vmapped
convolution is a grouped one, which GPU libraries serve slowly.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, unfold

from normscope.norms import BatchNorm1d, BatchNorm2d, BatchNorm3d

_KERNELS = ((BatchNorm1d, nn.BatchNorm1d), (BatchNorm2d, nn.BatchNorm2d), (BatchNorm3d, nn.BatchNorm3d))
_TAKE_ANY_ORDER = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.BatchNorm1d, nn.ReLU, nn.Flatten, nn.MaxPool2d, nn.Identity)


class ConvAsProduct(nn.Conv2d):
    """A `torch.nn.Conv2d` whose forward is one matrix product; its output has channels last in memory, or first."""

    contiguous: bool

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if isinstance(padding, str):
            # "same" may add one more at the end than at the beginning; zeros for "valid".
            input, padding = pad(input, self._reversed_padding_repeated_twice), (0, 0)
        patches = unfold(input, self.kernel_size, self.dilation, padding, self.stride)
        rows = patches.transpose(1, 2).reshape(-1, patches.shape[1])
        product = rows @ weight.flatten(1).T
        if bias is not None:
            product = product + bias
        reach = self.dilation[0] * (self.kernel_size[0] - 1)
        height = (input.shape[2] + 2 * padding[0] - reach - 1) // self.stride[0] + 1
        output = product.view(len(input), height, -1, len(weight)).permute(0, 3, 1, 2)
        # Run eager on a GPU, torch's BatchNorm asks for the order of its input, which vmap does not answer.
        eager = output.is_cuda and not torch.compiler.is_compiling()
        return output.contiguous() if self.contiguous or eager else output


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
            cast(ConvAsProduct, module).contiguous = contiguous


class MaskedDropout(nn.Dropout):
    """A `torch.nn.Dropout` that draws its mask by itself.

    On a GPU torch's fused kernel draws otherwise alone than under vmap; this one draws the same in both, and on a CPU
    what torch draws.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        mask = torch.empty(input.shape, dtype=input.dtype, device=input.device).bernoulli_(1 - self.p)
        return input * mask.div_(1 - self.p)


def draw_alike(model: nn.Module) -> None:
    """Lets, in place, the dropout layers of `model` draw in a stack what they draw alone."""
    for module in model.modules():
        if type(module) is nn.Dropout and module.p < 1:
            module.__class__ = MaskedDropout


def use_kernels(model: nn.Module) -> None:
    """BatchNorm by torch's kernel, in place: right to first order, which a step is, and faster under an eager vmap.

    Ours are torch's in arguments and state; what only ours can (eps = 0, momentum=None, across processes) stays.
    """
    for module in model.modules():
        for ours, kernel in _KERNELS:
            if type(module) is ours and module.eps > 0 and module.momentum is not None and not module.sync:
                module.__class__ = kernel  # type: ignore[assignment]
