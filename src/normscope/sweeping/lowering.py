r"""Replace convolutions by matrix products, which `vmap` over the members of a stack turns into batched products.

    y[n, o, p] = b[o] + sum_{c, i, j} W[o, c, i, j] x[n, c, s p + (i, j) d]

For one member this is the product of a matrix of patches, (N P, C k k), with the kernel, (C k k, O). `vmap` would turn
a convolution into a grouped one, for which GPU libraries are slow.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, unfold

from normscope.norms import BatchNorm1d, BatchNorm2d, BatchNorm3d

_KERNELS = ((BatchNorm1d, nn.BatchNorm1d), (BatchNorm2d, nn.BatchNorm2d), (BatchNorm3d, nn.BatchNorm3d))
_TAKE_ANY_ORDER = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.BatchNorm1d, nn.ReLU, nn.Flatten, nn.MaxPool2d, nn.Identity)


class ConvAsProduct(nn.Conv2d):
    """A `torch.nn.Conv2d` whose forward is one matrix product.

    contiguous: whether the output has channels second in memory; otherwise it has channels last.
    """

    contiguous: bool

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if isinstance(padding, str):
            # "same" may pad one more at the end than at the beginning; the padding of "valid" is zero.
            input, padding = pad(input, self._reversed_padding_repeated_twice), (0, 0)
        patches = unfold(input, self.kernel_size, self.dilation, padding, self.stride)
        rows = patches.transpose(1, 2).reshape(-1, patches.shape[1])
        product = rows @ weight.flatten(1).T
        if bias is not None:
            product = product + bias
        reach = self.dilation[0] * (self.kernel_size[0] - 1)
        height = (input.shape[2] + 2 * padding[0] - reach - 1) // self.stride[0] + 1
        output = product.view(len(input), height, -1, len(weight)).permute(0, 3, 1, 2)
        # In eager mode on a GPU, torch's BatchNorm reads the memory order of its input, which vmap cannot tell.
        eager = output.is_cuda and not torch.compiler.is_compiling()
        return output.contiguous() if self.contiguous or eager else output


def lower(model: nn.Module) -> None:
    """Replace, in place, every plain 2d convolution of `model` by a matrix product.

    Not replaced: convolutions with groups, with padding other than zeros, and subclasses with a forward of their own.
    If all layers of the network are known to take any memory order, outputs keep that of the product, channels last.
    Other kernels (GroupNorm's) read the memory order of their input, which vmap cannot tell.
    """
    layers = [module for module in model.modules() if not any(module.children())]
    contiguous = not all(isinstance(layer, _TAKE_ANY_ORDER) for layer in layers)
    for module in model.modules():
        if type(module) is nn.Conv2d and module.groups == 1 and module.padding_mode == "zeros":
            module.__class__ = ConvAsProduct
            cast(ConvAsProduct, module).contiguous = contiguous


class MaskedDropout(nn.Dropout):
    """A `torch.nn.Dropout` with the same mask alone and in a stack.

    On a GPU, torch's fused kernel draws another mask alone than under vmap; this layer draws the same in both cases. On
    a CPU the mask is torch's.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        mask = torch.empty(input.shape, dtype=input.dtype, device=input.device).bernoulli_(1 - self.p)
        return input * mask.div_(1 - self.p)


def draw_alike(model: nn.Module) -> None:
    """Replace, in place, the dropout layers of `model` by ones that draw the same mask alone and in a stack."""
    for module in model.modules():
        if type(module) is nn.Dropout and module.p < 1:
            module.__class__ = MaskedDropout


def use_kernels(model: nn.Module) -> None:
    """Replace, in place, normscope's BatchNorm layers by torch's, which are faster under an eager vmap.

    torch's kernel is right to first order, which is all a training step needs. Layers with options that torch's lack
    (eps = 0, momentum=None, sync=True) stay.
    """
    for module in model.modules():
        for ours, kernel in _KERNELS:
            if type(module) is ours and module.eps > 0 and module.momentum is not None and not module.sync:
                module.__class__ = kernel  # type: ignore[assignment]
