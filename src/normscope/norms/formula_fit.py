r"""Fit a normalizer's formula to the outputs of a layer: its statistics, its scale and shift, and its eps.

    y = A_c z + B_c        z = (x - m) / sqrt(v + eps)  or  x / sqrt(mean x^2 + eps)

On large inputs eps is negligible: A and B come from least squares for each channel. They must be parameters of the
layer (or 1 + a parameter, or 1 and 0). On tiny inputs v is negligible: the denominator is sqrt(eps).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope.norms import probing

# Relative tolerance: on inputs of size 100 an eps of 1e-3 changes z by 5e-8, and float32 sums have errors of 1e-6.
_FITS = 1e-4
# Size of inputs beside which eps is large, so that the outputs show it.
_TINY_INPUT = 1e-8
# eps of a layer that returns 0 for an input of 0, as F.normalize does, which divides by a norm of at least 1e-12.
_GUARD = 1e-24
_BATCH_NORM = (
    "it computes a BatchNorm with code of its own, whose running statistics are not known here; use torch's BatchNorm "
    "instead"
)


@dataclass(frozen=True)
class Formula:
    """The formula of a layer.

    Attributes:
        kind: the normalizer, and whether statistics are by position (over channels), by sample (in groups) or by batch.
        last: whether channels are the last dimension.
        weight, bias: names of the parameters, or None.
        offset: added to the weight.
        missed: why no layer of normscope computes this formula, or "".
    """

    kind: str
    last: bool
    groups: int = 1
    weight: str | None = None
    bias: str | None = None
    offset: float = 0.0
    eps: float = 0.0
    missed: str = ""

    @property
    def fixed(self) -> bool:
        """Whether the layer only scales each channel by a constant, as LayerScale does, and normalizes nothing."""
        return self.kind == "a fixed scale"

    def __str__(self) -> str:
        over = {
            "position": "over the channels of each position",
            "sample": "over each sample",
            "batch": "over the batch",
        }
        name, _, place = self.kind.partition(" by ")
        where = "the last dimension" if self.last and place == "position" else ""
        return f"{name} {'over ' + where if where else over.get(place, '')}".strip()


def fit(layer: nn.Module, channels: int, *, last: bool) -> Formula | None:
    """The formula of a layer, for inputs with channels last or second; None if no known formula fits.

    Args:
        layer: a copy of the layer; its mode is changed.
        channels: the number of channels.
        last: whether channels are the last dimension.
    """
    layer.eval()
    has_tensors = any(True for _ in (*layer.parameters(), *layer.buffers()))
    formula = _fit_mode(layer, channels, last, has_tensors)
    if has_tensors and (formula is None or formula.fixed) and not last:
        layer.train()
        formula = _fit_batch(layer, channels) or formula
    return formula


def _fit_mode(layer: nn.Module, channels: int, last: bool, has_tensors: bool) -> Formula | None:
    fixed = None
    for shape in probing.shapes(channels, last=last):
        x, smaller = (probing.draw(shape, scale, layer) for scale in (100.0, 10.0))
        y, same = probing.output(layer, x), probing.output(layer, smaller)
        if isinstance(y, Exception) or isinstance(same, Exception) or (len(shape) == 2 and not last):
            continue
        invariant = (y - same).abs().max() <= 10 * _FITS * y.abs().max()
        x, y = _second(x, last), _second(y, last)
        if not invariant:
            if not has_tensors or _affine(x, y) is None:
                return None
            fixed = _fixed(last)
            continue
        for kind, groups in _hypotheses(channels, last):
            affine = _affine(_normalized(x, kind, groups, 0.0), y)
            if affine is not None:
                return _formula(layer, shape, kind, groups, last, *affine)
        return None
    return fixed


def _fixed(last: bool) -> Formula:
    missed = "it scales and shifts each channel by constants, whatever its input (a frozen BatchNorm does)"
    return Formula("a fixed scale", last, missed=missed)


def _fit_batch(layer: nn.Module, channels: int) -> Formula | None:
    """The formula of a BatchNorm in train mode."""
    for shape in probing.shapes(channels, last=False):
        x = probing.draw(shape, 1.0, layer)
        # Several scales, another mean in each channel, and values of another distribution: only a layer that subtracts
        # the mean and divides by a multiple of the standard deviation has the same A and B for all of them.
        means = probing.draw(shape[1:2], 100.0, layer).view(-1, *[1] * (x.ndim - 2))
        inputs = [100 * x, 10 * x, 100 * x + means, 100 * x * (1 + x.abs())]
        outputs = [y for each in inputs if isinstance(y := probing.output(layer, each), Tensor)]
        if len(outputs) < len(inputs):
            continue
        fits = [
            _affine(_standard(each, [0, *range(2, x.ndim)], 0.0), y) for each, y in zip(inputs, outputs, strict=True)
        ]
        if fits[0] is not None and all(fit is not None and all(map(_near, fits[0], fit)) for fit in fits):
            return Formula("BatchNorm by batch", last=False, missed=_BATCH_NORM)
    return None


def _hypotheses(channels: int, last: bool) -> list[tuple[str, int]]:
    each = [("LayerNorm by position", 1), ("RMSNorm by position", 1)]
    if last:
        return each
    groups = [g for g in range(2, channels) if channels % g == 0]
    whole = [("LayerNorm by sample", 1), ("RMSNorm by sample", 1), ("InstanceNorm by sample", channels)]
    return each + whole + [("GroupNorm by sample", g) for g in groups]


def _second(x: Tensor, last: bool) -> Tensor:
    """`x` in the shape (N, C, everything else)."""
    x = x.movedim(-1, 1) if last else x
    return x.reshape(*x.shape[:2], -1)


def _normalized(x: Tensor, kind: str, groups: int, eps: float) -> Tensor:
    """The normalized values z of an input (N, C, S)."""
    if kind.endswith("position"):
        return x * (x.square().mean(1, keepdim=True) + eps).rsqrt() if kind[0] == "R" else _standard(x, [1], eps)
    if kind[0] == "R":
        return x * (x.square().mean([1, 2], keepdim=True) + eps).rsqrt()
    split = x.unflatten(1, (groups, -1))
    return _standard(split, [2, 3], eps).flatten(1, 2)


def _standard(x: Tensor, dims: list[int], eps: float) -> Tensor:
    var, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    return (x - mean) * (var + eps).rsqrt()


def _affine(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
    """A and B of y = A z + B for each channel in dimension 1; None if y is not of that form."""
    z, y = (t.double().transpose(0, 1).flatten(1) for t in (z, y))
    z0, y0 = z - z.mean(1, keepdim=True), y - y.mean(1, keepdim=True)
    a = (z0 * y0).sum(1) / z0.square().sum(1)
    b = y.mean(1) - a * z.mean(1)
    error = (y - a[:, None] * z - b[:, None]).abs().max()
    size = y.abs().max()
    return (a, b) if bool(error <= _FITS * size) and bool(y0.abs().max() > 10 * _FITS * size) else None


def _formula(
    layer: nn.Module, shape: tuple[int, ...], kind: str, groups: int, last: bool, a: Tensor, b: Tensor
) -> Formula:
    own = {name: p.double().flatten() for name, p in layer.named_parameters(recurse=False)}
    weight, offset = _named(a, own, (0.0, 1.0))
    bias, _ = _named(b, own, (0.0,))
    formula = Formula(kind, last, groups, weight, bias, offset)
    if weight is None and not _near(a, torch.ones_like(a)):
        scale = a / next((p for p in own.values() if _constant(a / p)), torch.ones_like(a))
        times = f"{float(scale.mean()):.4g}" if _constant(scale) else "numbers that are none of its parameters"
        return _missed(formula, f"it computes {formula} times {times}, which no layer here does")
    if bias is None and not _near(b, torch.zeros_like(b)):
        return _missed(formula, f"it computes {formula} and adds numbers that are none of its parameters")
    spare = [name for name, _ in layer.named_parameters() if name not in (weight, bias)]
    if spare:
        return _missed(formula, f"it computes {formula} and has the parameter {spare[0]!r} besides scale and shift")
    if bias is not None:
        # The outputs for tiny inputs would be lost in rounding beside the bias.
        layer.get_parameter(bias).zero_()
    eps = _eps(layer, probing.draw(shape, _TINY_INPUT, layer), formula, a)
    return Formula(kind, last, groups, weight, bias, offset, eps)


def _missed(formula: Formula, why: str) -> Formula:
    return Formula(formula.kind, formula.last, formula.groups, missed=why)


def _named(values: Tensor, own: dict[str, Tensor], offsets: tuple[float, ...]) -> tuple[str | None, float]:
    """The name of the parameter that equals these values up to an offset, and the offset."""
    for name, parameter in own.items():
        for offset in offsets:
            if parameter.numel() in (1, values.numel()) and _near(values, parameter + offset):
                return name, offset
    return None, 0.0


def _near(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= _FITS)


def _constant(values: Tensor) -> bool:
    return bool(values.std(correction=0) <= _FITS * values.mean().abs())


def _eps(layer: nn.Module, x: Tensor, formula: Formula, a: Tensor) -> float:
    """eps from the slope r = 1 / sqrt(v + eps) of y over (x - m), for tiny inputs with v << eps."""
    y, zero = probing.output(layer, x), probing.output(layer, 0 * x)
    assert isinstance(y, Tensor)
    x, y = _second(x, formula.last).double(), _second(y, formula.last).double()
    # The numerator z sqrt(v), times the scale.
    numerator = _normalized(x, formula.kind, formula.groups, 1.0) * a[:, None]
    r = float((numerator * y).sum() / numerator.square().sum())
    if r * _TINY_INPUT > 0.1:
        return _GUARD if isinstance(zero, Tensor) and bool(zero.isfinite().all()) else 0.0
    eps = 1 / r**2
    own = [value for value in vars(layer).values() if isinstance(value, float)]
    likely = [*own, torch.finfo(torch.float32).eps, *(float(f"{eps:.{digits}g}") for digits in (1, 2, 3))]
    return next((value for value in likely if abs(value - eps) <= 1e-3 * eps), eps)
