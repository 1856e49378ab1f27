r"""Both sides of the theorems on one layer: left sides by differentiation, right sides from `theory.inequalities`.

Everything runs in float64 on copies. The rest of the network is a function of z, differentiated twice: g and H come
from a graph that starts at z, d and Hh from one that starts at y and goes through BatchNorm, the weights' gradient and
curvature from one that starts at W. No right side uses any of the left's derivatives but g and H, as the theorems do.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.bounds.result import Bounds, Row, row
from normscope.bounds.units import Layer, as_array
from normscope.environment import environment
from normscope.observe.untouched import untouched
from normscope.theory import inequalities as theory

_Array = NDArray[np.float64]

# Above this many values a unit, Hessians are looked at through products alone.
FULL = 256
# Of float64's 2e-16 and the tolerance of 1e-9: below this share of its terms a difference is rounding.
_ROUNDING = 1e-6


def check(
    linear: nn.Module,
    norm: nn.Module,
    x: Tensor,
    downstream: Callable[[Tensor], Tensor],
    *,
    w0: Tensor | None = None,
    w_star: Tensor | None = None,
    lam: float | None = None,
    units: int | Sequence[int] = 8,
) -> Bounds:
    r"""Theorems 4.1, 4.2, 4.4, C.1, Lemma 4.5, Observation 4.3, Facts C.1 and C.2 on a linear layer and its BatchNorm.

    eps is 0 on the copy, as in the theorems, and the batch's own statistics are used whatever the mode of `norm`.

    Args:
        linear: nn.Linear or nn.Conv2d; a convolution's units are channels, with m = samples times positions.
        norm: the BatchNorm after it, torch's or normscope's.
        x: input of `linear`, one batch.
        downstream: the rest of the network, from the output of `norm` to the loss, a scalar; takes float64. A module is
            lent float64 copies and left as it was. Anything random in it must repeat itself.
        w0, w_star: initial and trained weights of `linear`, for Lemma 4.5; w_star is the weight it has unless given.
        lam: bound on the spectral norm of the inputs in Theorems 4.4 and C.1; that of this batch unless given.
        units: how many outputs to look at, spread evenly; or which.

    Returns:
        A `Bounds`: rows with left, right, slack and verdict, for the printed and the corrected form of each statement.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> found = check(nn.Linear(4, 2), nn.BatchNorm1d(2), torch.randn(8, 4), lambda z: z.pow(3).sum())
        >>> found.holds
        True
        >>> found.summary().query("statement == 'Theorem 4.1'")[["form", "holds", "units"]].values.tolist()
        [['printed', 0, 2], ['corrected', 2, 2]]
    """
    if w_star is not None and w0 is None:
        raise ValueError("Lemma 4.5 compares two weights: w_star came without w0. Hand in the initial weights too.")
    lent = untouched(downstream, dtype=torch.float64) if isinstance(downstream, nn.Module) else nullcontext()
    with torch.inference_mode(False), torch.enable_grad(), lent:
        layer = Layer(linear, norm, x)
        chosen, notes = layer.choose(units)
        sides = _Sides(layer, downstream)
        largest = layer.input_norm()
        lam = largest if lam is None else _positive(lam)
        if lam < largest:
            notes.append(f"lam = {lam:.4g} is below the norm {largest:.4g} of these inputs, which it should bound.")
        full = layer.m <= FULL
        if not full:
            notes.append(f"{layer.m} values a unit: Hessians are checked through products, entries only up to {FULL}.")
        rows: list[Row] = []
        for unit in chosen:
            rows += _unit_rows(sides, unit, lam, full, bounded=lam >= largest)
        if w0 is not None:
            rows += _lemma(sides, w0, linear.weight if w_star is None else w_star)  # type: ignore[arg-type]
    return Bounds(tuple(rows), layer.m, lam, tuple(chosen), tuple(notes), environment(layer.x.device))


class _Sides:
    """The derivatives that the left sides, and the g and H that the right sides are made of."""

    def __init__(self, layer: Layer, downstream: Callable[[Tensor], Tensor]) -> None:
        self.layer, self._downstream = layer, downstream
        self.z, self.y, self.weight = (
            start.detach().clone().requires_grad_() for start in (layer.transform(layer.y), layer.y, layer.weight)
        )
        losses = [
            self._loss(self.z),
            self._loss(layer.transform(self.y)),
            self._loss(layer.transform(layer.apply(self.weight))),
        ]
        if not torch.allclose(losses[0], torch.stack(losses), rtol=1e-9, atol=0):
            raise ValueError(
                f"downstream must give the same loss for the same z; got {[loss.item() for loss in losses]}. Put "
                "dropout in eval mode, or reset its generator at every call."
            )
        self.g, self.d, self.by_weight = (
            torch.autograd.grad(loss, start, create_graph=True, allow_unused=True, materialize_grads=True)[0]
            for loss, start in zip(losses, (self.z, self.y, self.weight), strict=True)
        )

    def _loss(self, z: Tensor) -> Tensor:
        try:
            loss = self._downstream(z.clone())  # its first layer may work in place
        except RuntimeError as error:
            raise ValueError(
                f"downstream does not take z, float64 of shape {tuple(z.shape)}: {error}. Make a copy of it .double()."
            ) from error
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"downstream must give the loss, one number; got {shape}. Average or sum it.")
        if not torch.isfinite(loss):
            raise ValueError(f"The loss is {loss.item()}; the theorems need a finite one.")
        return loss.reshape(())

    def loss_with(self, weight: Tensor) -> float:
        with torch.no_grad():
            return self._loss(self.layer.transform(self.layer.apply(weight))).item()

    def of(self, gradient: Tensor, unit: int) -> _Array:
        """The values of one unit of a tensor shaped like y or z."""
        return as_array(self.layer.values(gradient)[unit])

    def product(self, gradient: Tensor, start: Tensor, unit: int, v: _Array) -> _Array:
        """The unit's own block of the Hessian behind `gradient`, times v."""
        seed = self.layer.spread(torch.from_numpy(np.ascontiguousarray(v)).to(start), unit)
        return self.of(_derivative(gradient, start, seed), unit)

    def block(self, gradient: Tensor, start: Tensor, unit: int) -> _Array:
        return np.stack([self.product(gradient, start, unit, column) for column in np.eye(self.layer.m)])

    def weight_curvature(self, unit: int) -> float:
        """The gradient by the unit's weights, times their Hessian, times the gradient."""
        seed = torch.zeros_like(self.weight)
        seed[unit] = self.by_weight[unit].detach()
        return float((_derivative(self.by_weight, self.weight, seed)[unit] * seed[unit]).sum())


def _derivative(gradient: Tensor, start: Tensor, seed: Tensor) -> Tensor:
    if not gradient.requires_grad:
        return torch.zeros_like(start)
    return torch.autograd.grad(gradient, start, seed, retain_graph=True, allow_unused=True, materialize_grads=True)[0]


def _unit_rows(sides: _Sides, j: int, lam: float, full: bool, *, bounded: bool) -> list[Row]:
    layer = sides.layer
    unit = theory.Unit(sides.of(sides.g, j), layer.y_hat(j), layer.s(j), layer.gamma(j))
    d = sides.of(sides.d, j)
    squared, size = float(d @ d), float(unit.gain * (unit.g @ unit.g))
    rows = [
        _same("Fact C.1", j, d, theory.gradient(unit), np.sqrt(size)),
        _same("Observation 4.3", j, layer.undone(j), as_array(layer.values(layer.y)[j])),
        row("Theorem 4.1", "printed", j, "<=", squared, theory.squared_gradient(unit, printed=True), scale=size),
        row("Theorem 4.1", "corrected", j, "=", squared, theory.squared_gradient(unit), scale=size),
    ]
    curvature = float(d @ sides.product(sides.d, sides.y, j, d))
    h_d, h_g = (sides.product(sides.g, sides.z, j, v) for v in (d, unit.g))
    before, after = float(unit.g @ h_g), float(d @ h_d)
    taken = theory.separation(unit, squared)
    # Where BatchNorm projects almost all of g out, d is what rounding left of it, and its products are too.
    length = float(np.linalg.norm(unit.g))
    curved = unit.gain * float(np.linalg.norm(h_g)) / length if length else 0.0
    rounding = _ROUNDING * size * (curved + abs(unit.gamma) * length / (unit.s**2 * np.sqrt(unit.m)))
    terms = max(abs(unit.gain * after), abs(taken), rounding)
    rows += [
        row("Theorem 4.2, part 1", form, j, relation, curvature, unit.gain * after - taken, scale=terms)
        for form, relation in (("printed", "<="), ("corrected", "="))
    ]
    met = after <= before
    note = f"condition d^T H d <= g^T H g {'is' if met else 'is NOT'} met: {after:.4g}, {before:.4g}"
    terms, right = max(terms, abs(unit.gain * before)), unit.gain * before - taken
    rows += [
        row("Theorem 4.2, part 2", form, j, "<=", curvature, right, scale=terms, applies=applies, note=note)
        for form, applies in (("printed", True), ("corrected", met))
    ]
    rows += _weight_rows(sides, unit, j, d, rounding, lam, bounded=bounded)
    if full:
        rows += _full_rows(sides, unit, j, d)
    return rows


def _weight_rows(
    sides: _Sides, unit: theory.Unit, j: int, d: _Array, rounding: float, lam: float, *, bounded: bool
) -> list[Row]:
    """Theorems 4.4 and C.1, which vary the inputs X and hold y, s and g fixed."""
    inputs = sides.layer.inputs(j)
    squared = float(d @ d)
    right = theory.largest_weight_gradient(unit, lam)
    # The maximum is attained by X = lam d v^T / |d|, for any unit vector v.
    attained = lam**2 * squared
    size = float(lam**2 * unit.gain * (unit.g @ unit.g))
    actual = float(sides.by_weight[j].detach().square().sum())
    pulled = inputs @ (inputs.T @ d)
    curved = sides.product(sides.d, sides.y, j, pulled)
    terms = max(float(np.linalg.norm(pulled) * np.linalg.norm(curved)), lam**4 * rounding)
    printed = theory.largest_weight_gradient(unit, lam, printed=True)
    return [
        row("Theorem 4.4", "printed", j, "<=", attained, printed, scale=size),
        row("Theorem 4.4", "corrected", j, "=", attained, right, scale=size),
        *([row("Theorem 4.4, these inputs", "corrected", j, "<=", actual, right, scale=size)] if bounded else []),
        row(
            "Theorem C.1, (54) and (56)", "both", j, "=", sides.weight_curvature(j), float(pulled @ curved), scale=terms
        ),
    ]


def _full_rows(sides: _Sides, unit: theory.Unit, j: int, d: _Array) -> list[Row]:
    """What needs every entry of the m x m matrices."""
    layer = sides.layer
    h, h_hat = sides.block(sides.g, sides.z, j), sides.block(sides.d, sides.y, j)
    size = max(float(np.abs(unit.gain * h).max()), float(np.abs(h_hat).max()))
    size = max(size, abs(unit.gamma) / unit.s**2 * float(np.linalg.norm(unit.g)) / np.sqrt(unit.m))
    largest, without = theory.largest_curvature(h_hat, d), theory.largest_curvature(h, unit.g)
    right = unit.gain * without - theory.separation(unit, float(d @ d))
    terms = size * unit.m * float(d @ d) + abs(unit.gain * without)
    return [
        _same("Fact C.2", j, layer.jacobian(j), theory.jacobian(unit)),
        _same("Hessian (41), (42)", j, h_hat, theory.hessian(unit, h, printed=True), size, form="printed"),
        _same("Hessian (41), (42)", j, h_hat, theory.hessian(unit, h), size, form="corrected"),
        row(
            "Theorem C.1, (58), lam = 1", "printed", j, "<=", largest, float(d @ h_hat @ d), scale=terms,
            note="left: the maximum over |X| <= 1; printed as equal to the right",
        ),
        row("Theorem C.1, lam = 1", "printed", j, "<=", largest, right, scale=terms),
    ]  # fmt: skip


def _same(statement: str, j: int, left: _Array, right: _Array, size: float = 0.0, *, form: str = "both") -> Row:
    """Entry by entry; the sides are the largest entries."""
    off = float(np.abs(left - right).max())
    top = max(float(np.abs(left).max()), float(np.abs(right).max()), size)
    sides = float(np.abs(left).max()), float(np.abs(right).max())
    return row(statement, form, j, "=", *sides, error=off / top if top else 0.0)


def _lemma(sides: _Sides, w0: Tensor, w_star: Tensor) -> list[Row]:
    shape = tuple(sides.weight.shape)
    for name, weight in (("w0", w0), ("w_star", w_star)):
        if tuple(weight.shape) != shape:
            raise ValueError(f"{name} must have the shape {shape} of the layer's weight; got {tuple(weight.shape)}.")
    first, last = (weight.detach().to(sides.weight) for weight in (w0, w_star))
    if not last.any():
        raise ValueError("w_star is zero, and BatchNorm has no direction to scale. Hand in trained weights.")
    k, left, right = theory.nearest_optimum(as_array(first), as_array(last))
    size = float(first.square().sum() + last.square().sum())
    met = k > 0
    note = f"condition <W0, W*> > 0 {'is' if met else 'is NOT'} met: k = {k:.4g}"
    rows = [
        row("Lemma 4.5", form, -1, relation, left, right, scale=size, applies=met, note=note)
        for form, relation in (("printed", "<="), ("corrected", "="))
    ]
    if met:
        losses = sides.loss_with(last), sides.loss_with(k * last)
        rows.append(row("Lemma 4.5, loss at W* and k W*", "both", -1, "=", *losses))
    return rows


def _positive(lam: float) -> float:
    if not 0 < lam < float("inf"):
        raise ValueError(f"lam bounds the norm of the inputs and is a positive number; got {lam}.")
    return float(lam)
