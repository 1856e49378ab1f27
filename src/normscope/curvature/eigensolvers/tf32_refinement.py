r"""A search by products rounded to TF32, and its end by exact ones.

A GPU multiplies matrices of numbers rounded to ten bits several times as fast. A whole product then takes 0.4 to 0.6 of
its time (VGG-16 and PreActResNet-18 on an H200) and is right to 1e-4 to 1e-3 of its size, about what a search is asked
for. What is found so is multiplied in full precision, and gone on with from there as from a memory (`warm.py`): value
and residual are of exact products alone. The size that residuals are relative to is the larger end's, as in a search by
exact products, which may be known from rounded ones.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

import torch
from torch import Tensor

from normscope.curvature.eigensolvers.davidson import DavidsonSearch
from normscope.curvature.eigensolvers.lanczos import Product, Ritz
from normscope.curvature.eigensolvers.start_vectors import KEPT

# Relative residual that rounded products lead to: asked for less, a search by them would be in vain.
_TOL = 5e-4
# More than that, and it was no rounding: the model has another forward mode than backward (`around.py`).
_MISLED = 0.1
# Products set apart for the end, and how many a search must be allowed to spare them.
_END, _LEAST = 4, 16

_rounded: ContextVar[bool] = ContextVar("_rounded", default=False)


@contextmanager
def rounded() -> Iterator[None]:
    """Inside, products may be rounded to TF32; whoever makes a product asks `is_rounded`."""
    token = _rounded.set(True)
    try:
        yield
    finally:
        _rounded.reset(token)


def is_rounded() -> bool:
    return _rounded.get()


def rehearsable(like: Tensor, tol: float, most: int) -> bool:
    """Whether products with vectors like this one have a rounded form, and it leads far enough."""
    if like.device.type != "cuda" or torch.version.cuda is None or like.dtype != torch.float32:
        return False
    return torch.cuda.get_device_capability(like.device) >= (8, 0) and tol >= _TOL and most >= _LEAST


def rehearsed(
    search: Callable[..., Ritz], product: Product, *, smallest: bool, tol: float, least: int, most: int, keep: int
) -> Ritz:
    """`search(product, ...)` by rounded products, its end by exact ones."""

    def by_rounded_products(v: Tensor) -> Tensor:
        with rounded():
            return product(v)

    def exactly(done: int) -> Ritz:
        ritz = search(product, smallest=smallest, tol=tol, least=least, most=most - done, keep=keep)
        return replace(ritz, products=done + ritz.products)

    try:
        rehearsal = search(
            by_rounded_products, smallest=smallest, tol=tol, least=least - 1, most=most - _END, keep=max(keep, KEPT)
        )
    except RuntimeError:
        # Torch does not let a forward read its older flags of precision meanwhile. What else it was comes again.
        return exactly(0)
    size = max(map(abs, rehearsal.values))
    end = DavidsonSearch(rehearsal.memory, rehearsal.vectors[0], size)
    both = smallest and len(rehearsal.values) > 1
    wanted = (rehearsal.vectors[0], rehearsal.smallest_vector) if both else (rehearsal.vectors[0],)
    top, *bottom = [end.basis.coordinates(v) for v in wanted]
    end.multiply(top, product)
    error = math.hypot(float(end.theta[0]) - rehearsal.values[0], float(end.lengths[0]))
    if rehearsal.converged and error > max(_MISLED, 2 * tol) * size:
        return exactly(rehearsal.products + 1)
    for direction in bottom:
        end.multiply(end.basis.stacked([direction])[0], product)
    done = rehearsal.products + len(wanted)
    return end.ended(product, done, smallest=smallest, tol=tol, least=0, most=most, keep=keep)
