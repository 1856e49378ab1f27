"""The `Solver` of a measurement: which eigenvalue search is made, from which start vectors, to which tolerance.

A fresh start is the gradient, most of which lies in the top eigenvectors, plus a random vector of the same length,
which misses no eigenvector. A warm start is the remembered top vector, plus a small part of the fresh start and of the
other remembered vectors, so that a neighbour that has overtaken the top one shows.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.curvature.eigensolvers.block_lanczos import block_lanczos
from normscope.curvature.eigensolvers.davidson import FEWEST_PRODUCTS, FEWEST_WARM_PRODUCTS, davidson
from normscope.curvature.eigensolvers.lanczos import Memory, Ritz, lanczos
from normscope.curvature.eigensolvers.tf32_refinement import tf32_first, tf32_pays
from normscope.linear_maps import Product

# Share of the fresh start in a warm start. With 0.01 a search finds a remembered eigenvector that has overtaken the
# last top eigenvector by 3 %. From 0.03 on, a warm start costs more products (measured from one training step to the
# next).
FRESH_SHARE = 0.01
_COUNTED = {"max_products": "products", "block": "start vectors"}


@dataclass(frozen=True, kw_only=True)
class Solver:
    """Settings of the eigenvalue search: `measure(model, loss_fn, batch, solver=Solver(tol=1e-6))`.

    The relative residual of a pair (lambda, v) is |A v - lambda v| / |lambda|; a true eigenvalue lies within this share
    of lambda.

    Args:
        tol: relative residual to reach, more than 0. lambda_max is then right to 0.1 % by default, which is less than
            it differs from batch to batch, and float32 products hardly allow a tenth of it. Where it is not reached,
            the result has `converged=False`.
        max_products: largest number of products v -> A v. A fresh search takes 8 to 20 in most networks; 100 leave room
            for hard ones.
        block: number of start vectors. One is cheapest. As many as the network has outputs find top eigenvalues that
            nearly coincide, which one vector separates slowly.

    Example:
        >>> Solver(tol=1e-6).max_products
        100
    """

    tol: float = 1e-3
    max_products: int = 100
    block: int = 1

    def __post_init__(self) -> None:
        for name, count in (("max_products", self.max_products), ("block", self.block)):
            if not isinstance(count, int) or count < 1:
                raise ValueError(f"{name}= counts {_COUNTED[name]}, at least 1; got {count!r}.")
        if not (math.isfinite(self.tol) and self.tol > 0):
            raise ValueError(f"tol= is a relative residual, more than 0; got {self.tol!r}. The default is 1e-3.")

    def search(
        self,
        product: Product,
        gradient: Tensor,
        *,
        smallest: bool = False,
        memory: Memory | None = None,
        keep: int = 1,
        seed: int = 0,
        rounded_product: Product | None = None,
    ) -> Ritz:
        """Search for the largest eigenvalue (and the smallest, if asked).

        Args:
            product: v -> A v, A symmetric.
            gradient: a vector with a large part in the top eigenvectors; the search starts near it.
            smallest: whether to find the smallest eigenvalue too.
            memory: Ritz pairs of an earlier search, to start from.
            keep: Ritz pairs to remember for a later search.
            seed: seed of the random part of the start vectors.
            rounded_product: v -> A v rounded to TF32 where the GPU can, for the first part of the search; None where
                every product must be exact.
        """
        if not gradient.any():
            # A zero gradient leaves the random part alone to show an eigenvector that has overtaken the remembered
            # one, and a fresh start has more of the random part.
            memory = None
        fresh = fresh_start(gradient, self.block, seed)
        start = fresh if memory is None else warm_start(memory, fresh)
        options: dict[str, Any] = {"smallest": smallest, "tol": self.tol, "most": self.max_products, "keep": keep}
        options["least"] = FEWEST_PRODUCTS if memory is None or len(start) > 1 else FEWEST_WARM_PRODUCTS

        def from_one_vector(product: Product, **options: Any) -> Ritz:
            if memory is None:
                return lanczos(product, start[0], mix=0.0, **options)
            return davidson(product, memory, start[0], fresh[0], **options)

        if len(start) > 1:
            return block_lanczos(product, start, **options)
        if rounded_product is not None and tf32_pays(start, self.tol, self.max_products):
            return tf32_first(from_one_vector, product, rounded_product, **options)
        return from_one_vector(product, **options)


def fresh_start(gradient: Tensor, block: int, seed: int) -> Tensor:
    """(block, n): start vectors, the gradient in the first."""
    if block > gradient.numel():
        raise ValueError(
            f"block= start vectors are at most as many as parameters, {gradient.numel()} here; got {block}."
        )
    # Drawn on the device: for a large network on a GPU, drawing on the host would take longer than some products.
    generator = torch.Generator(gradient.device).manual_seed(seed)
    rows = gradient.new_empty(block, gradient.numel()).normal_(generator=generator)
    rows = rows / rows.norm(dim=1, keepdim=True)
    size = gradient.norm()
    if size > 0 and math.isfinite(float(size)):
        rows[0] = rows[0] + gradient / size * (1.0 if rows[0] @ gradient >= 0 else -1.0)
    return rows


def warm_start(memory: Memory, fresh: Tensor) -> Tensor:
    """As many start vectors as `fresh` has; a single one has a part of every remembered vector."""
    remembered = memory.vectors.to(fresh)
    rows = fresh.clone()
    if len(rows) == 1:
        rows[0] += remembered[1:].sum(0)
    together = remembered[: len(rows)]
    rows[: len(together)] = together + FRESH_SHARE * rows[: len(together)]
    return rows
