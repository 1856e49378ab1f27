"""The `Solver` of a measurement: which eigenvalue search is made, from which start vectors, to which tolerance."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from normscope.curvature.eigensolvers.block_lanczos import block_lanczos
from normscope.curvature.eigensolvers.davidson import LEAST, LEAST_WARM, lanczos_from
from normscope.curvature.eigensolvers.lanczos import Memory, Product, Ritz, lanczos
from normscope.curvature.eigensolvers.start_vectors import fresh_start, warm_start
from normscope.curvature.eigensolvers.tf32_refinement import rehearsable, rehearsed

_COUNTED = {"most": "products", "block": "start vectors"}


@dataclass(frozen=True, kw_only=True)
class Solver:
    """Settings of the eigenvalue search: `measure(model, loss_fn, batch, solver=Solver(tol=1e-6))`.

    The relative residual of a pair (lambda, v) is |A v - lambda v| / |lambda|; a true eigenvalue lies within this share
    of lambda.

    Args:
        tol: relative residual to reach, more than 0. lambda_max is then right to 0.1 % by default, which is less than
            it differs from batch to batch, and float32 products hardly allow a tenth of it. Where it is not reached,
            the result has `converged=False`.
        most: products v -> A v at most. A fresh search takes 8 to 20 in most networks; 100 leave room for hard ones.
        block: number of start vectors. One is cheapest. As many as the network has outputs find top eigenvalues that
            nearly coincide, which one vector separates slowly.

    Example:
        >>> Solver(tol=1e-6).most
        100
    """

    tol: float = 1e-3
    most: int = 100
    block: int = 1

    def __post_init__(self) -> None:
        for name, count in (("most", self.most), ("block", self.block)):
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
        alone: bool = True,
    ) -> Ritz:
        """Search for the largest eigenvalue (and the smallest, if asked).

        Args:
            product: v -> A v, A symmetric.
            gradient: a vector with a large part in the top eigenvectors; the search starts near it.
            memory: Ritz pairs of an earlier search, to start from.
            keep: Ritz pairs to remember for a later search.
            seed: seed of the random part of the start vectors.
            alone: whether this process searches alone. Of several processes, one whose GPU rounds would make other
                products than one whose GPU does not, so none starts with rounded products.
        """
        if not gradient.any():
            # A zero gradient leaves the random part alone to show an eigenvector that has overtaken the remembered
            # one, and a fresh start has more of the random part.
            memory = None
        fresh = fresh_start(gradient, self.block, seed)
        start = fresh if memory is None else warm_start(memory, fresh)
        options: dict[str, Any] = {"smallest": smallest, "tol": self.tol, "most": self.most, "keep": keep}
        options["least"] = LEAST if memory is None or len(start) > 1 else LEAST_WARM

        def from_one_vector(product: Product, **options: Any) -> Ritz:
            if memory is None:
                return lanczos(product, start[0], mix=0.0, **options)
            return lanczos_from(product, memory, start[0], fresh[0], **options)

        if len(start) > 1:
            return block_lanczos(product, start, **options)
        if alone and rehearsable(start, self.tol, self.most):
            return rehearsed(from_one_vector, product, **options)
        return from_one_vector(product, **options)
