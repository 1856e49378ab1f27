r"""A check of float32 results in float64: v'Av of each pair, and the product A v where it differs.

Let the inputs of a normalizer have a mean that is many times their spread. The normalizer then takes the difference of
large numbers, and its float32 products are those of another matrix: also symmetric, and with small residuals. With a
mean of 1e4 standard deviations that matrix is 90 times as large as the true one. No residual shows this, since
residuals come from the same products.

Where v'Av in the two precisions differ by more than the tolerance, there are three cases:
- The vector is near an eigenvector in float64 too: the result takes value and residual of the float64 product.
- The vector is not near one: the search is made again in float64, with the products that are left of `most`.
- Too few products are left: the one float64 product stands, and counts as not converged.

A generator gives each dtype other numbers, so passes that draw (dropout) draw in float32 here too (`narrow_draws.py`).
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from normscope.curvature.eigensolvers.davidson import FEWEST_PRODUCTS
from normscope.curvature.eigensolvers.lanczos import Ritz, scales
from normscope.curvature.measurement.narrow_draws import NarrowDraws
from normscope.curvature.measurement.spectrum_ends import SpectrumEnds
from normscope.curvature.session.opening import open_session
from normscope.curvature.session.session import Session, requiring_grad
from normscope.isolation.memory_bound import bytes_of

# Differences below this are accepted: rounding of v'Av alone makes up to 1e-5.
_BEARABLE_DIFFERENCE = 1e-4
# Relative residual in float64, and difference of the values, up to which float32 has found the right eigenvector and no
# new search is made. Beyond, the vector may belong to the other end of the spectrum, with a small residual too.
_RIGHT_VECTOR_GAP = 0.02
# Share of a float32 value below which the value in float64 is rounding of zero: roundings squared have ratio 3e-18.
_ROUNDING_SHARE = 1e-13
# Inputs whose mean is at least this many standard deviations are named in the note.
_LEAST_FAR_MEAN = 100.0


def checked_in_float64(
    searches: Mapping[str, SpectrumEnds], session: Session, *, keep: int
) -> tuple[dict[str, SpectrumEnds], list[str]]:
    """The searches, made again where float32 had the wrong eigenvector, and a note on each that was corrected.

    Args:
        session: in float32. Its solver's tolerance is the relative difference to bear.
        keep: Ritz pairs to remember.
    """
    # Generators, too, begin in the state where every pass has begun.
    session.lent.reset()
    checked, notes = dict(searches), []
    leaves, options = session.lent.leaves, session.options
    bearable = max(options.solver.tol, _BEARABLE_DIFFERENCE)
    same_draws = NarrowDraws() if session.observed.forward_draws else nullcontext()
    with (
        requiring_grad(session.lent, range(len(leaves))),
        open_session(
            session.model,
            session.loss_fn,
            session.batches,
            only=set(map(id, leaves)),
            dtype=torch.float64,
            choose=lambda _: session.chosen,
            beside=session.lent.size + bytes_of(session.batches),
            options=session.options,
        ) as wide,
        same_draws,
    ):
        for name, narrow in searches.items():
            try:
                ends = [_end(pair, wide, narrow, bearable) for pair in _pairs(narrow)]
                if all(end.difference <= bearable for end in ends):
                    continue
                ritz, error = _mended(narrow.ritz, ends, options.solver.tol), narrow.error
                products_left = options.solver.max_products - narrow.ritz.products
                if (
                    products_left >= FEWEST_PRODUCTS
                    and ends[0].exact
                    and any(end.gap > _RIGHT_VECTOR_GAP for end in ends)
                ):
                    shorter = replace(options.solver, max_products=products_left)
                    again = replace(wide, options=replace(options, solver=shorter))
                    ritz, error = again.search(
                        narrow.stats, narrow.matrix, narrow.block, smallest=narrow.smallest, keep=keep
                    )
                    ritz = replace(ritz, products=narrow.ritz.products + ritz.products)
            except Exception as problem:
                reason = (str(problem) or repr(problem)).splitlines()[0]
                notes.append(f"Not checked in float64: {name} ({reason}).")
                continue
            checked[name] = replace(narrow, ritz=ritz, error=error)
            notes.append(_correction(name, narrow.ritz.values[0], ritz.values[0], session.batches))
    return checked, notes


@dataclass(frozen=True)
class _Pair:
    """One eigenpair that the search in float32 has found.

    Attributes:
        value: the eigenvalue.
        residual: its relative residual.
        vector: the unit vector, in float64.
        size: the size that differences are relative to.
    """

    value: float
    residual: float
    vector: Tensor
    size: float


@dataclass(frozen=True)
class _End:
    """One end of a spectrum, looked at in float64.

    Attributes:
        exact: v'Av in float64.
        difference: the relative difference of the float32 value from it.
        residual: the relative residual in float64. Where the difference is bearable, it is that of the search in
            float32.
    """

    exact: float
    difference: float
    residual: float

    @property
    def gap(self) -> float:
        return max(self.residual, self.difference)


def _pairs(ends: SpectrumEnds) -> list[_Pair]:
    """The top pair, and the bottom one if it was asked for."""
    ritz = ends.ritz
    sizes = scales(torch.tensor(ritz.values, dtype=torch.float64).flip(0)).flip(0).tolist()
    ends_asked_for = [(ritz.values[0], ritz.residuals[0], ritz.vectors[0], sizes[0])]
    if ends.smallest:
        ends_asked_for.append((ritz.values[-1], ritz.residuals[-1], ritz.smallest_vector, sizes[-1]))
    return [_Pair(value, residual, v.double() / v.double().norm(), size) for value, residual, v, size in ends_asked_for]


def _end(pair: _Pair, session: Session, ends: SpectrumEnds, bearable: float) -> _End:
    exact, completed_product = session.quadratic_form(ends.stats, ends.matrix, pair.vector, ends.block)
    if abs(pair.value - exact) <= bearable * pair.size:
        return _End(exact, abs(pair.value - exact) / pair.size, pair.residual)
    product = completed_product()
    exact = float(pair.vector @ product)
    if abs(exact) < _ROUNDING_SHARE * abs(pair.value):
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


def _correction(name: str, narrow: float, wide: float, batches: Sequence[Any]) -> str:
    finding = (
        f"In float32 {name} came out as {narrow:.5g}; it is {wide:.5g} in float64 (dtype=torch.float64 searches in it)."
    )
    far = max((_offset(t) for batch in batches for t in tree_leaves(batch[0]) if isinstance(t, Tensor)), default=0.0)
    if far < _LEAST_FAR_MEAN:
        return f"{finding} Training in float32 has the same rounding errors."
    size = "constant features far from zero" if far == float("inf") else f"a mean of {far:.2g} standard deviations"
    return f"{finding} The inputs have {size}: standardize them, training in float32 has the same rounding errors."


def _offset(x: Tensor) -> float:
    """The largest |mean| / standard deviation over the samples of one feature; inf for one that is constant."""
    if not x.is_floating_point() or x.ndim < 2 or len(x) < 2:
        return 0.0
    rows = x.detach().double().flatten(1)
    mean, std = rows.mean(0).abs(), rows.std(0)
    return float(torch.where(mean > 0, mean / std, 0.0).max())
