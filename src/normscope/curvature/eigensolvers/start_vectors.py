"""Start vectors of a search, fresh or from the memory of an earlier one.

A fresh start is the gradient, most of which lies in the top eigenvectors, plus a random vector of the same length,
which misses no eigenvector. A warm start is the remembered top vector, plus a small part of the fresh start and of the
other remembered vectors, so that a neighbour that has overtaken the top one shows.
"""

import math

import torch
from torch import Tensor

from normscope.curvature.eigensolvers.lanczos import Memory

# Share of the fresh start. This much lets an eigenvector that has overtaken the last one show: of those remembered, one
# that is ahead by 3 %. From 0.03 on a warm start costs more products (measured from one training step to the next).
WARM = 0.01
# Pairs to remember: more than the ten eigenvalues that nearly coincide at the top with ten outputs. With 8 a warm start
# took more products (6 for 5), with 24 no fewer.
KEPT = 12


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
    known = memory.vectors.to(fresh)
    rows = fresh.clone()
    if len(rows) == 1:
        rows[0] += known[1:].sum(0)
    together = known[: len(rows)]
    rows[: len(together)] = together + WARM * rows[: len(together)]
    return rows
