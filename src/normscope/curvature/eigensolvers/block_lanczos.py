r"""Block Lanczos with full reorthogonalization, for tops of nearly equal eigenvalues and for warm starts.

    A Q_j = Q_j T_j + P_{j+1} C_j E_j^T,    T_j = Q_j^T A Q_j block tridiagonal,   P_{j+1} the next block
    residual of the Ritz pair (theta, Q_j s):  ||C_j s_last||,  s_last the part of s in the last block

A Krylov space of one start vector finds one vector of an eigenspace, and separates near-equal eigenvalues only after
many products. A space of b start vectors finds b of them at once. One step multiplies all b vectors of a block, so it
costs b products. A direction whose image lies in the space already leaves the block. The module knows no network.
Source: Golub and Underwood 1977.
"""

import torch
from torch import Tensor

from normscope.curvature.eigensolvers.lanczos import Ritz, remembered, rounding, scales
from normscope.linear_maps import Product


def block_lanczos(
    product: Product,
    start: Tensor,
    *,
    k: int = 1,
    smallest: bool = False,
    tol: float = 1e-3,
    least: int = 8,
    most: int = 100,
    keep: int = 1,
) -> Ritz:
    """The k largest eigenvalues (and the smallest, if asked) to a relative residual of `tol`.

    Args:
        product: v -> A v, A symmetric.
        start: (b, n), the start vectors as rows; dependent ones are left out.
        k: number of largest eigenvalues to search.
        tol: relative residual to reach.
        least: smallest number of products, counted one by one.
        most: largest number of products.
        keep: Ritz pairs to remember.
        smallest: whether to search the smallest eigenvalue too.

    Returns:
        A `Ritz`: eigenvalues in falling order, with their vectors and relative residuals.

    Example:
        >>> a = torch.diag(torch.tensor([1.0, 2.0, 5.0, 5.0], dtype=torch.float64))
        >>> start = torch.tensor([[1.0, 1, 1, 0], [1, 0, 1, 1]], dtype=torch.float64)
        >>> [round(value, 6) for value in block_lanczos(lambda v: a @ v, start, k=2).values[:2]]
        [5.0, 5.0]
    """
    block, _ = _orthonormal(start, 0.0)
    basis, projected = start.new_empty(0, start.shape[1]), torch.zeros(0, 0, dtype=torch.float64)
    converged = False
    while len(block) and not converged and len(basis) < most:
        block = block[: most - len(basis)]
        before = len(basis)
        basis = torch.cat([basis, block])
        images = torch.stack([product(q) for q in block])
        columns = (basis @ images.T).double().cpu()
        projected = _extended(projected, columns)
        # Two passes are enough: the part that the first one leaves is of the size of rounding.
        for _ in range(2):
            images = images - (images @ basis.T) @ basis
        theta, s = torch.linalg.eigh(projected)
        scale = float(theta.abs().max()) or 1.0
        block, coupling = _orthonormal(images, rounding(start.dtype) * scale)
        residuals = torch.linalg.vector_norm(coupling.double().cpu() @ s[before:], dim=0) / scales(theta)
        residuals_to_reach = residuals[-min(k, len(basis)) :].tolist() + (residuals[:1].tolist() if smallest else [])
        enough = len(basis) >= min(max(least, k), start.shape[1])
        converged = not len(block) or (max(residuals_to_reach) <= tol and enough)
    return Ritz(
        values=tuple(theta.flip(0).tolist()),
        residuals=tuple(residuals.flip(0).tolist()),
        vectors=s[:, -min(k, len(basis)) :].flip(1).to(start).T @ basis,
        smallest_vector=s[:, 0].to(start) @ basis,
        converged=converged,
        products=len(basis),
        memory=remembered(theta, s, basis, keep),
    )


def _orthonormal(rows: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """P, C with rows^T = P^T C, the rows of P orthonormal; directions of length `least` or less are left out."""
    q, r = torch.linalg.qr(rows.T)
    u, lengths, v = torch.linalg.svd(r)
    kept = lengths > max(least, float(lengths[0]) * 1e-6)
    return (q @ u[:, kept]).T.contiguous(), lengths[kept, None] * v[kept]


def _extended(inside: Tensor, columns: Tensor) -> Tensor:
    """The symmetric matrix T_j, grown by the last block's columns."""
    n, before = len(columns), len(inside)
    grown = torch.zeros(n, n, dtype=torch.float64)
    grown[:before, :before] = inside
    grown[:, before:] = columns
    grown[before:] = columns.T
    corner = columns[before:]
    grown[before:, before:] = (corner + corner.T) / 2
    return grown
