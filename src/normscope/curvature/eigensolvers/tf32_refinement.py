r"""A search by products rounded to TF32, finished by exact products.

A GPU multiplies matrices several times as fast when their entries are rounded to ten bits (the format TF32). A whole
product v -> A v then takes 0.4 to 0.6 of its time (VGG-16 and PreActResNet-18 on an H200). Its error is 1e-4 to 1e-3 of
its size, which is about the tolerance of a search.

So a search has two parts. The first part makes rounded products until it has converged. The second part multiplies the
vectors found by exact products, and goes on from there as from a memory (`davidson.py`) until it has converged too.
Value and residual come from exact products alone. Residuals are relative to the size of the larger end, as in a search
by exact products; that size may be known from rounded products.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from normscope.curvature.eigensolvers.davidson import DavidsonSearch
from normscope.curvature.eigensolvers.lanczos import KEPT_PAIRS, Ritz
from normscope.linear_maps import Product

# Relative residual that rounded products reach: for a smaller tolerance a search by them would be in vain.
_LEAST_TOLERANCE = 5e-4
# A relative difference larger than this is not rounding: the model's forward mode and backward pass are of different
# maps (`operators/gauss_newton.py`).
_MISLED_ERROR = 0.1
# Products set apart for the exact end, and the fewest products a search must be allowed for that to pay.
_EXACT_PRODUCTS, _FEWEST = 4, 16


def tf32_pays(like: Tensor, tol: float, most: int) -> bool:
    """Whether products with vectors like this one have a rounded form, and it leads far enough."""
    if like.device.type != "cuda" or torch.version.cuda is None or like.dtype != torch.float32:
        return False
    return torch.cuda.get_device_capability(like.device) >= (8, 0) and tol >= _LEAST_TOLERANCE and most >= _FEWEST


def tf32_first(
    search: Callable[..., Ritz],
    product: Product,
    rounded_product: Product,
    *,
    smallest: bool,
    tol: float,
    least: int,
    most: int,
    keep: int,
) -> Ritz:
    """`search(product, ...)` by `rounded_product`, its end by exact products."""

    def exactly(done: int) -> Ritz:
        ritz = search(product, smallest=smallest, tol=tol, least=least, most=most - done, keep=keep)
        return replace(ritz, products=done + ritz.products)

    try:
        by_rounded = search(
            rounded_product,
            smallest=smallest,
            tol=tol,
            least=least - 1,
            most=most - _EXACT_PRODUCTS,
            keep=max(keep, KEPT_PAIRS),
        )
    except RuntimeError:
        # Torch refuses a forward that reads its older precision flags while the newer ones are set. Any other error
        # will recur in the exact search.
        return exactly(0)
    size = max(map(abs, by_rounded.values))
    end = DavidsonSearch(by_rounded.memory, by_rounded.vectors[0], size)
    two_ends = smallest and len(by_rounded.values) > 1
    end_vectors = (by_rounded.vectors[0], by_rounded.smallest_vector) if two_ends else (by_rounded.vectors[0],)
    top, *bottom = [end.basis.coordinates(v) for v in end_vectors]
    end.multiply(top, product)
    error = math.hypot(float(end.theta[0]) - by_rounded.values[0], float(end.lengths[0]))
    if by_rounded.converged and error > max(_MISLED_ERROR, 2 * tol) * size:
        return exactly(by_rounded.products + 1)
    for direction in bottom:
        end.multiply(end.basis.stacked([direction])[0], product)
    done = by_rounded.products + len(end_vectors)
    return end.run_until_converged(product, done, smallest=smallest, tol=tol, least=0, most=most, keep=keep)
