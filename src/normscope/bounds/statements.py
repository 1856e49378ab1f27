"""Every statement on one unit as a row: its left side by differentiation, its right side from the theory."""

import numpy as np
import torch
from torch import Tensor

from normscope.bounds.derivatives import LayerDerivatives
from normscope.bounds.normalized_layer import Array, as_array
from normscope.bounds.result import StatementRow, row
from normscope.theory import inequalities as theory

# Between float64's 2e-16 and the tolerance of 1e-9: a difference below this share of its terms is rounding.
_ROUNDING = 1e-6
# Both sides have products of up to four gradients and four inputs; beyond these sizes they leave float64.
_SMALLEST, _LARGEST = 1e-50, 1e50


def unit_rows(derivatives: LayerDerivatives, j: int, lam: float, full: bool, *, bounded: bool) -> list[StatementRow]:
    layer = derivatives.layer
    unit = theory.Unit(derivatives.of(derivatives.g, j), layer.y_hat(j), layer.s(j), layer.gamma(j))
    d = derivatives.of(derivatives.d, j)
    _check_range(unit, lam)
    squared, size = float(d @ d), float(unit.gain * (unit.g @ unit.g))
    rows = [
        _same("Fact C.1", j, d, theory.gradient(unit), np.sqrt(size)),
        _same("Observation 4.3", j, layer.undone(j), layer.whole(j)),
        row("Theorem 4.1", "printed", j, "<=", squared, theory.squared_gradient(unit, printed=True), scale=size),
        row("Theorem 4.1", "corrected", j, "=", squared, theory.squared_gradient(unit), scale=size),
    ]
    curvature = float(d @ derivatives.product(derivatives.d, derivatives.y, j, d))
    h_d, h_g = (derivatives.product(derivatives.g, derivatives.z, j, v) for v in (d, unit.g))
    before, after = float(unit.g @ h_g), float(d @ h_d)
    taken = theory.separation(unit, squared)
    # Where BatchNorm projects almost all of g out, d is rounding error, and so are its products.
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
    rows += _weight_rows(derivatives, unit, j, d, rounding, lam, bounded=bounded)
    return rows + (_full_rows(derivatives, unit, j, d, rounding) if full else _product_rows(derivatives, unit, j))


def _weight_rows(
    derivatives: LayerDerivatives, unit: theory.Unit, j: int, d: Array, rounding: float, lam: float, *, bounded: bool
) -> list[StatementRow]:
    """Theorems 4.4 and C.1, which vary the inputs X and hold y, s and g fixed."""
    inputs = derivatives.layer.inputs(j)
    squared = float(d @ d)
    right = theory.largest_weight_gradient(unit, lam)
    # The maximum is attained by X = lam d v^T / |d|, for any unit vector v.
    attained = lam**2 * squared
    size = float(lam**2 * unit.gain * (unit.g @ unit.g))
    actual = float(derivatives.by_weight[j].detach().square().sum())
    pulled = inputs @ (inputs.T @ d)
    curved = derivatives.product(derivatives.d, derivatives.y, j, pulled)
    terms = max(float(np.linalg.norm(pulled) * np.linalg.norm(curved)), lam**4 * rounding)
    printed = theory.largest_weight_gradient(unit, lam, printed=True)
    by_weight = derivatives.weight_curvature(j)
    return [
        row("Theorem 4.4", "printed", j, "<=", attained, printed, scale=size),
        row("Theorem 4.4", "corrected", j, "=", attained, right, scale=size),
        *([row("Theorem 4.4, these inputs", "corrected", j, "<=", actual, right, scale=size)] if bounded else []),
        row("Theorem C.1, (54) and (56)", "both", j, "=", by_weight, float(pulled @ curved), scale=terms),
    ]


def _full_rows(
    derivatives: LayerDerivatives, unit: theory.Unit, j: int, d: Array, rounding: float
) -> list[StatementRow]:
    """Statements that need every entry of the m x m matrices."""
    layer = derivatives.layer
    h, h_hat = derivatives.block(derivatives.g, derivatives.z, j), derivatives.block(derivatives.d, derivatives.y, j)
    size = max(float(np.abs(unit.gain * h).max()), float(np.abs(h_hat).max()))
    size = max(size, abs(unit.gamma) / unit.s**2 * float(np.linalg.norm(unit.g)) / np.sqrt(unit.m))
    largest, without = theory.largest_curvature(h_hat, d), theory.largest_curvature(h, unit.g)
    taken = theory.separation(unit, float(d @ d))
    terms = max(float(np.linalg.norm(h_hat)) * float(d @ d), rounding)
    terms_without = max(terms, abs(unit.gain * without), abs(taken))
    return [
        _same("Fact C.2", j, layer.jacobian(j), theory.jacobian(unit), abs(unit.gamma) / unit.s),
        _same("Hessian (41), (42)", j, h_hat, theory.hessian(unit, h, printed=True), size, form="printed"),
        _same("Hessian (41), (42)", j, h_hat, theory.hessian(unit, h), size, form="corrected"),
        row(
            "Theorem C.1, (58), lam = 1", "printed", j, "<=", largest, float(d @ h_hat @ d), scale=terms,
            note="left: the maximum over |X| <= 1; printed as equal to the right",
        ),
        row("Theorem C.1, lam = 1", "printed", j, "<=", largest, unit.gain * without - taken, scale=terms_without),
    ]  # fmt: skip


def _product_rows(derivatives: LayerDerivatives, unit: theory.Unit, j: int) -> list[StatementRow]:
    """The Hessian times g. Unlike d, g has a part along 1 and yh."""
    left = derivatives.product(derivatives.d, derivatives.y, j, unit.g)
    rights = {
        form: theory.hessian_times(
            unit, unit.g, lambda v: derivatives.product(derivatives.g, derivatives.z, j, v), printed=form == "printed"
        )
        for form in ("printed", "corrected")
    }
    size = abs(unit.gamma) / unit.s**2 * float(unit.g @ unit.g) / np.sqrt(unit.m)
    return [_same("Hessian (41), (42), times g", j, left, right, size, form=form) for form, right in rights.items()]


def _check_range(unit: theory.Unit, lam: float) -> None:
    length = float(np.abs(unit.g).max())
    sizes = [length, lam * length, length * abs(unit.gamma) / unit.s, lam * length * abs(unit.gamma) / unit.s]
    if any(size and not _SMALLEST <= size <= _LARGEST for size in sizes):
        raise ValueError(
            f"The gradient with respect to z has entries of {length:.1g}, and times |gamma|/s or |X| it leaves "
            f"[{_SMALLEST:g}, {_LARGEST:g}]: products of it leave float64. Scale the loss or the inputs."
        )


def _same(statement: str, j: int, left: Array, right: Array, size: float = 0.0, *, form: str = "both") -> StatementRow:
    """A row that compares two arrays entry by entry; its sides are the largest entries."""
    off = float(np.abs(left - right).max())
    top = max(float(np.abs(left).max()), float(np.abs(right).max()), size)
    sides = float(np.abs(left).max()), float(np.abs(right).max())
    return row(statement, form, j, "=", *sides, error=off / top if top else 0.0)


def lemma_rows(derivatives: LayerDerivatives, w0: Tensor, w_star: Tensor) -> list[StatementRow]:
    shape = tuple(derivatives.weight.shape)
    for name, weight in (("w0", w0), ("w_star", w_star)):
        if not isinstance(weight, Tensor):
            raise ValueError(
                f"{name} is a tensor of the shape {shape} of the layer's weight; got {type(weight).__name__}."
            )
        if tuple(weight.shape) != shape:
            raise ValueError(f"{name} must have the shape {shape} of the layer's weight; got {tuple(weight.shape)}.")
        if not torch.isfinite(weight).all():
            raise ValueError(f"{name} has values that are not finite.")
    first, last = (weight.detach().to(derivatives.weight) for weight in (w0, w_star))
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
        losses = derivatives.loss_with(last), derivatives.loss_with(k * last)
        scale = derivatives.loss_terms(last, _ROUNDING)
        rows.append(row("Lemma 4.5, loss at W* and k W*", "both", -1, "=", *losses, scale=scale))
    return rows
