r"""Eigenvalues found in float32, looked at once more in float64: v'Av of each pair, and the product where it differs.

Behind inputs whose mean is many times their spread a normalizer takes the difference of large numbers. Its products are
then those of another matrix, symmetric and with small residuals: with a mean of 1e4 standard deviations 90 times as
large. No residual shows that, since it is made of the same products. Where v'Av of both differ by more than the
tolerance, value and residual of that product are taken if the vector is near an eigenvector in float64 too. If it is
not, the search is made anew in float64, with the products that are left of `most`; with too few left, that one product
stands, and counts as not converged.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from normscope.curvature.autograd.float32_draws import NarrowDraws
from normscope.curvature.eigensolvers.davidson import LEAST
from normscope.curvature.eigensolvers.lanczos import Ritz, scales
from normscope.curvature.session import Look
from normscope.isolation.lending import Lent, untouched

# The least difference that is held against float32: rounding of v'Av alone makes up to 1e-5.
_LEAST = 1e-4
# Relative residual in float64, and difference of the values, up to which float32 has found the right eigenvector: a new
# search would cost as much as the first. Beyond, the vector may be one of the other end, with a small residual too.
_NEAR = 0.02
# Share of a float32 value below which the value in float64 is rounding of zero: roundings squared have ratio 3e-18.
_ROUNDING = 1e-13
# Means of so many standard deviations are named.
_FAR = 100.0


@dataclass(frozen=True)
class Found:
    """The ends of one spectrum, and what was asked for. error: the standard error of a sampled matrix."""

    stats: str
    matrix: str
    chosen: Sequence[int]
    smallest: bool
    ritz: Ritz
    error: float = 0.0


def cast(batches: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    """The batches with floating-point tensors of this dtype."""
    return [tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, b) for b in batches]


def looked_at_in_float64(
    found: Mapping[str, Found],
    lent: Lent,
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    batches: Sequence[Any],
    *,
    tol: float,
    keep: int,
    draws: bool,
    options: Mapping[str, Any],
) -> tuple[dict[str, Found], list[str]]:
    """`found` with those searched anew that float32 had wrong, and what to say of it.

    Args:
        lent: what the model works with, in float32. tol: relative difference to bear. keep: pairs to remember.
        draws: whether forwards draw random numbers. options: of the `Look`.
    """
    # Generators, too, begin where every pass has begun.
    lent.reset()
    for leaf in lent.leaves:
        leaf.requires_grad_(True)
    checked, notes = dict(found), []
    alike = NarrowDraws() if draws else nullcontext()
    with untouched(model, only=set(map(id, lent.leaves)), dtype=torch.float64) as wide, alike:
        solver, in_float64 = options["solver"], cast(batches, torch.float64)

        def looking(most: int) -> Look:
            own = {"dtype": torch.float64, "solver": replace(solver, most=most)}
            return Look(wide, model, loss_fn, in_float64, **{**options, **own})

        look = looking(solver.most)
        for name, one in found.items():
            try:
                ends = [_end(pair, look, one, max(tol, _LEAST)) for pair in _pairs(one)]
                if all(end.difference <= max(tol, _LEAST) for end in ends):
                    continue
                ritz, error = _mended(one.ritz, ends, tol), one.error
                left = solver.most - one.ritz.products
                if left >= LEAST and ends[0].exact and any(end.gap > _NEAR for end in ends):
                    search: dict[str, Any] = {"smallest": one.smallest, "keep": keep}
                    ritz, error = looking(left).top(one.stats, one.matrix, one.chosen, **search)
                    ritz = replace(ritz, products=one.ritz.products + ritz.products)
            except Exception as problem:
                said = (str(problem) or repr(problem)).splitlines()[0]
                notes.append(f"Not checked in float64: {name} ({said}).")
                continue
            checked[name] = Found(one.stats, one.matrix, one.chosen, one.smallest, ritz, error)
            notes.append(_wrong(name, one.ritz.values[0], ritz.values[0], batches))
    return checked, notes


@dataclass(frozen=True)
class _Pair:
    """A value and its residual as found, its unit vector, and the size that differences are relative to."""

    value: float
    residual: float
    vector: Tensor
    size: float


@dataclass(frozen=True)
class _End:
    """exact: v'Av in float64; difference: of the value found from it. residual: in float64, relative as that is.

    Where the difference is bearable the residual is that of the search, in float32.
    """

    exact: float
    difference: float
    residual: float

    @property
    def gap(self) -> float:
        return max(self.residual, self.difference)


def _pairs(found: Found) -> list[_Pair]:
    """The top, and the bottom if it was asked for."""
    ritz = found.ritz
    sizes = scales(torch.tensor(ritz.values, dtype=torch.float64).flip(0)).flip(0).tolist()
    wanted = [(ritz.values[0], ritz.residuals[0], ritz.vectors[0], sizes[0])]
    if found.smallest:
        wanted.append((ritz.values[-1], ritz.residuals[-1], ritz.smallest_vector, sizes[-1]))
    return [_Pair(value, residual, v.double() / v.double().norm(), size) for value, residual, v, size in wanted]


def _end(pair: _Pair, look: Look, found: Found, bearable: float) -> _End:
    exact, image = look.form(found.stats, found.matrix, found.chosen, pair.vector)
    if abs(pair.value - exact) <= bearable * pair.size:
        return _End(exact, abs(pair.value - exact) / pair.size, pair.residual)
    product = image()
    exact = float(pair.vector @ product)
    if abs(exact) < _ROUNDING * abs(pair.value):
        # The float32 value was all rounding, as where only a bias before BatchNorm is trained.
        return _End(0.0, abs(pair.value) / pair.size, 0.0)
    residual = float((product - exact * pair.vector).norm()) / pair.size
    return _End(exact, abs(pair.value - exact) / pair.size, residual)


def _mended(ritz: Ritz, ends: Sequence[_End], tol: float) -> Ritz:
    values, residuals = list(ritz.values), list(ritz.residuals)
    for place, end in zip((0, -1), ends, strict=False):
        values[place], residuals[place] = end.exact, end.residual
    converged = all(end.residual <= tol for end in ends)
    return replace(ritz, values=tuple(values), residuals=tuple(residuals), converged=converged)


def _wrong(name: str, narrow: float, wide: float, batches: Sequence[Any]) -> str:
    said = (
        f"In float32 {name} came out as {narrow:.5g}; it is {wide:.5g} in float64 (dtype=torch.float64 searches in it)."
    )
    far = max((_offset(t) for batch in batches for t in tree_leaves(batch[0]) if isinstance(t, Tensor)), default=0.0)
    if far < _FAR:
        return f"{said} Training in float32 has the same rounding errors."
    size = "constant features far from zero" if far == float("inf") else f"a mean of {far:.2g} standard deviations"
    return f"{said} The inputs have {size}: standardize them, training in float32 has the same rounding errors."


def _offset(x: Tensor) -> float:
    """The largest |mean| / standard deviation over the samples of one feature; inf for one that is constant."""
    if not x.is_floating_point() or x.ndim < 2 or len(x) < 2:
        return 0.0
    rows = x.detach().double().flatten(1)
    mean, std = rows.mean(0).abs(), rows.std(0)
    return float(torch.where(mean > 0, mean / std, 0.0).max())
