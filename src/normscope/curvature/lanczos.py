r"""Lanczos with full reorthogonalization: both ends of a symmetric operator's spectrum from products alone.

    A Q_j = Q_j T_j + beta_j q_{j+1} e_j^T,    T_j = S diag(theta) S^T tridiagonal
    Ritz pairs (theta_i, Q_j s_i),   residual ||A v - theta v|| = beta_j |s_{j,i}|

The residual comes for free with every step; a pair counts as converged when residual <= tol * max |theta|. Then some
eigenvalue lies within tol of theta: that it is the largest one cannot be proved from products alone, so the start mixes
random directions into whatever is handed in, and at least `least` products are made. With C outputs the top C
eigenvalues nearly coincide; a stop by the residual, unlike one by a small change of theta, resolves them.
Knows no network: A is a function from a vector to a vector.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Ritz:
    """Eigenvalue estimates from both ends, each with its residual relative to the largest |theta|.

    values: descending, all that the Krylov space has. vectors: of the `k` largest, one a row.
    """

    values: tuple[float, ...]
    residuals: tuple[float, ...]
    vectors: Tensor
    smallest_vector: Tensor
    converged: bool
    products: int


def lanczos(
    product: Product,
    start: Tensor,
    *,
    k: int = 1,
    smallest: bool = False,
    tol: float = 1e-3,
    least: int = 8,
    most: int = 100,
) -> Ritz:
    """The k largest eigenvalues (and the smallest, if asked) to a relative residual of `tol`.

    Args:
        product: v -> A v, A symmetric.
        start: any nonzero vector; its entries' dtype is the one worked in.
        least, most: products at least and at most; a Krylov space that ends before is exact.
    """
    n = start.numel()
    most = min(most, n)
    basis = start.new_empty(min(most, 32), n)
    alphas: list[float] = []
    betas: list[float] = []
    q = start / start.norm()
    while True:
        j = len(alphas)
        if j == len(basis):
            basis = torch.cat([basis, start.new_empty(min(len(basis), most - j), n)])
        basis[j] = q
        w = product(q)
        alphas.append(float(w @ q))
        known = basis[: j + 1]
        for _ in range(2):
            w = w - known.T @ (known @ w)
        beta = float(w.norm())
        theta, s = torch.linalg.eigh(_tridiagonal(alphas, betas))
        scale = float(theta.abs().max()) or 1.0
        residuals = beta * s[-1].abs() / scale
        wanted = residuals[-min(k, j + 1) :].tolist() + (residuals[:1].tolist() if smallest else [])
        ended = beta <= 1e-12 * scale
        converged = ended or (j + 1 >= max(least, k) and max(wanted) <= tol)
        if converged or j + 1 >= most:
            top = s[:, -min(k, j + 1) :].flip(1).to(start.dtype).to(start.device)
            return Ritz(
                values=tuple(theta.flip(0).tolist()),
                residuals=tuple(residuals.flip(0).tolist()),
                vectors=top.T @ known,
                smallest_vector=s[:, 0].to(start.dtype).to(start.device) @ known,
                converged=converged,
                products=j + 1,
            )
        betas.append(beta)
        q = w / beta


def _tridiagonal(alphas: list[float], betas: list[float]) -> Tensor:
    diagonal = torch.diag(torch.tensor(alphas, dtype=torch.float64))
    if not betas:
        return diagonal
    off = torch.diag(torch.tensor(betas, dtype=torch.float64), 1)
    return diagonal + off + off.T
