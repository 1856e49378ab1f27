"""A linear layer with its BatchNorm on one batch, in float64, seen unit by unit."""

import operator
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from normscope.isolation.lending import untouched
from normscope.norms.batch import batch_norm
from normscope.norms.noisy import NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d, NoisyBatchNormNd

Array = NDArray[np.float64]
_NOISY = (NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d, NoisyBatchNormNd)
# A standard deviation below this share of the largest value is rounding, and the unit constant.
_CONSTANT = 1e-12


def is_linear(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, nn.Conv2d))


def is_batch_norm(module: nn.Module) -> TypeGuard[nn.modules.batchnorm._BatchNorm]:
    """Whether the class is a BatchNorm over this process's batch; `normalizes` checks the values."""
    batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return batch_norm and not isinstance(module, (*_NOISY, nn.SyncBatchNorm))


def normalizes(norm: nn.modules.batchnorm._BatchNorm, y: Tensor) -> bool:
    """Whether `norm` in train mode computes BatchNorm of y; a subclass may have a forward of its own."""
    if y.numel() == y.shape[1]:
        return True  # one value a unit, which train mode refuses
    with torch.no_grad(), untouched(norm, dtype=torch.float64):
        norm.train()
        # Without hooks and without a replaced `forward` of the module.
        normalized = type(norm).forward(norm, y.double())
        expected = batch_norm(y.double(), norm.weight, norm.bias, eps=norm.eps)
    return normalized.shape == expected.shape and torch.allclose(
        normalized, expected, rtol=1e-4, atol=1e-4, equal_nan=True
    )


def as_array(values: Tensor) -> Array:
    array: Array = values.detach().cpu().numpy()
    return array


def _copy(values: Tensor, like: Tensor) -> Tensor:
    return values.detach().to(like.device, torch.float64, copy=True)


class NormalizedLayer:
    """y = W x + b and z = gamma (y - mean)/s + beta, with eps = 0.

    weight, y: float64 copies. y lacks its mean, which BatchNorm subtracts: a mean far above s would cost digits.
    m: values of a unit over the batch (samples, times positions for a convolution).
    """

    def __init__(self, linear: nn.Module, norm: nn.Module, x: Tensor) -> None:
        if not isinstance(linear, (nn.Linear, nn.Conv2d)):
            raise ValueError(f"linear must be an nn.Linear or nn.Conv2d; got {type(linear).__name__}.")
        if not is_batch_norm(norm):
            raise ValueError(
                f"norm must be a BatchNorm, torch's or normscope's, without noise and of one process; got "
                f"{type(norm).__name__}."
            )
        if not isinstance(x, Tensor):
            raise ValueError(f"x is a tensor, one batch of inputs of the layer; got {type(x).__name__}.")
        if x.is_complex():
            raise ValueError("x holds complex values, and the theorems are about real ones.")
        if any(t.is_meta for t in (x, *linear.parameters(False), *norm.parameters(False))):
            raise ValueError("x or the layer is on the meta device and has no values. Materialize and initialize it.")
        if any(is_lazy(p) for module in (linear, norm) for p in module.parameters(False)):
            raise ValueError("The layer is lazy and has no weights yet. Run the network once on a batch.")
        self._linear, self._norm = linear, norm
        self.x = _copy(x, x)
        self.weight = _copy(linear.weight, x)
        self._bias = None if linear.bias is None else _copy(linear.bias, x)
        try:
            whole = self._outputs(self.x, self.weight, self._bias)
            self.y = self.apply(self.weight)
        except RuntimeError as error:
            raise ValueError(f"{linear} does not take x of shape {tuple(x.shape)}: {error}") from error
        outputs, features = self.weight.shape[0], norm.num_features
        if outputs != features or whole.ndim != (4 if isinstance(linear, nn.Conv2d) else 2):
            raise ValueError(
                f"norm must normalize what linear gives, (samples, {outputs}) or (samples, {outputs}, H, W); got "
                f"{tuple(whole.shape)} and a norm of {features} features."
            )
        if not torch.isfinite(whole).all():
            raise ValueError("The layer's output has values that are not finite; look at x and the weights.")
        self._whole, values = self.values(whole), self.values(self.y)
        self.m = values.shape[1]
        self._mean, self._var = self._whole.mean(1), values.var(1, correction=0)
        self.constant = self._var.sqrt() <= _CONSTANT * self.values(self.terms(self.weight)).amax(1)
        if not normalizes(norm, self.y):
            raise ValueError(
                f"norm must do what BatchNorm does, gamma (y - mean)/sqrt(var + eps) + beta over the batch; this "
                f"{type(norm).__name__} gives something else."
            )
        affine = (norm.weight, 1.0), (norm.bias, 0.0)
        self._gamma, self._beta = (
            self._var.new_full((outputs,), default) if p is None else p.detach().to(self.x) for p, default in affine
        )
        # A constant unit is not checked, but the rest of the network needs a value for it.
        self._eps = torch.where(self.constant, max(norm.eps, 1e-5), 0.0)

    def _outputs(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if isinstance(self._linear, nn.Conv2d):
            outputs: Tensor = self._linear._conv_forward(x, weight, bias)
            return outputs
        return F.linear(x, weight, bias)

    def apply(self, weight: Tensor) -> Tensor:
        """The linear layer with other weights, without bias and mean."""
        y = self._outputs(self.x, weight, None)
        return y - y.mean([0, *range(2, y.ndim)], keepdim=True)

    def terms(self, weight: Tensor) -> Tensor:
        """Sizes of the terms that are summed into y; rounding errors are relative to them."""
        return self._outputs(self.x.abs(), weight.abs(), None)

    def relative_terms(self, weight: Tensor) -> Tensor:
        """The sizes of `terms` as parts of z: times |gamma|/s."""
        y = self.apply(weight)
        gamma, eps = (p.view(1, -1, *[1] * (y.ndim - 2)) for p in (self._gamma, self._eps))
        var = y.var([0, *range(2, y.ndim)], correction=0, keepdim=True)
        return gamma.abs() * self.terms(weight) / (var + eps).sqrt()

    def transform(self, y: Tensor) -> Tensor:
        """BatchNorm, composed of operations with right derivatives of every order."""
        dims = [0, *range(2, y.ndim)]
        var, mean = torch.var_mean(y, dims, correction=0, keepdim=True)
        gamma, beta, eps = (p.view(1, -1, *[1] * (y.ndim - 2)) for p in (self._gamma, self._beta, self._eps))
        return gamma * (y - mean) / (var + eps).sqrt() + beta

    def values(self, y: Tensor) -> Tensor:
        """The values of y or z by unit, shape (units, m)."""
        return y.movedim(1, 0).reshape(y.shape[1], -1)

    def spread(self, v: Tensor, unit: int) -> Tensor:
        """A tensor like y that holds v in the place of one unit and is zero elsewhere."""
        placed = torch.zeros_like(self.y)
        placed[:, unit] = v.view(placed[:, unit].shape)
        return placed

    def s(self, unit: int) -> float:
        return float(self._var[unit].sqrt())

    def gamma(self, unit: int) -> float:
        return float(self._gamma[unit])

    def y_hat(self, unit: int) -> Array:
        y = self.values(self.y)[unit]
        return as_array((y - y.mean()) / self._var[unit].sqrt())

    def whole(self, unit: int) -> Array:
        """y with its mean."""
        return as_array(self._whole[unit])

    def undone(self, unit: int) -> Array:
        """BatchNorm with gamma = s and beta = mean, which gives y back (Observation 4.3)."""
        return self.s(unit) * self.y_hat(unit) + float(self._mean[unit])

    def jacobian(self, unit: int) -> Array:
        """dz/dy of one unit, by differentiation."""
        y = self.y.clone().requires_grad_()
        z = self.values(self.transform(y))[unit]
        seeds = torch.eye(self.m, dtype=z.dtype, device=z.device)
        rows = [self.values(torch.autograd.grad(z, y, seed, retain_graph=True)[0])[unit] for seed in seeds]
        return as_array(torch.stack(rows))

    def inputs(self, unit: int) -> Array:
        """X, (m, fan-in) of a unit: its values are y = X w + b."""
        if isinstance(self._linear, nn.Linear):
            return as_array(self.x)
        conv = self._linear
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        padded = F.pad(self.x, conv._reversed_padding_repeated_twice, mode=mode)
        width = padded.shape[1] // conv.groups
        group = unit // (conv.out_channels // conv.groups)
        patches = F.unfold(
            padded[:, group * width : (group + 1) * width], conv.kernel_size, conv.dilation, 0, conv.stride
        )
        return as_array(patches.movedim(1, 2).reshape(self.m, -1))

    def input_norm(self) -> float:
        """The largest spectral norm of X; one for each group of channels."""
        groups = self._linear.groups if isinstance(self._linear, nn.Conv2d) else 1
        each = self.weight.shape[0] // groups
        return max(float(np.linalg.norm(self.inputs(group * each), 2)) for group in range(groups))

    def choose(self, units: int | Sequence[int]) -> tuple[list[int], list[str]]:
        """The units to check, and notes about them."""
        count, notes = self.weight.shape[0], []
        if not isinstance(units, (Sequence, np.ndarray)):
            units = _index(units)
            if units < 1:
                raise ValueError(f"units is how many to check, at least 1, or a list of them; got {units}.")
            chosen = [int(unit) for unit in np.unique(np.linspace(0, count - 1, min(units, count)).round())]
            if len(chosen) < count:
                notes.append(f"{len(chosen)} of {count} units, spread evenly; units= takes others.")
        else:
            chosen = list(dict.fromkeys(map(_index, units)))
            if not chosen or any(not 0 <= unit < count for unit in chosen):
                raise ValueError(f"units are outputs 0 to {count - 1} of the layer, at least one; got {list(units)}.")
        constant = [unit for unit in chosen if self.constant[unit]]
        chosen = [unit for unit in chosen if not self.constant[unit]]
        if not chosen:
            raise ValueError(
                f"Units {constant} have the same value all over the batch of {self.m}: their variance is 0, and the "
                "theorems, with eps = 0, divide by it. Take a larger or more varied batch, or other units."
            )
        if constant:
            notes.append(f"Units {constant} are constant over the batch (variance 0) and left out.")
        if self._norm.eps:
            share = float(self._norm.eps / self._var[chosen].min())
            notes.append(
                f"eps = {self._norm.eps:g} is 0 on the copy, as in the theorems: {share:.1g} of the least variance."
            )
        if not self._norm.training:
            notes.append(
                "The norm is in eval mode; the theorems are about the batch's own statistics, which were used."
            )
        dead = [unit for unit in chosen if self._gamma[unit] == 0]
        if dead:
            notes.append(f"Units {dead} have gamma = 0: no gradient passes, and both sides are 0.")
        return chosen, notes


def _index(unit: object) -> int:
    try:
        return operator.index(unit)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(f"units are whole numbers, one or a list of them; got {unit!r}.") from None
