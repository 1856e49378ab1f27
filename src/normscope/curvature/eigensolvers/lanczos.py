r"""Lanczos with full reorthogonalization: both ends of a symmetric operator's spectrum from products alone.

    A Q_j = Q_j T_j + beta_j q_{j+1} e_j^T,    T_j = S diag(theta) S^T tridiagonal
    Ritz pairs (theta_i, Q_j s_i),   residual ||A v - theta v|| = beta_j |s_{j,i}|

Each step costs one product and adds one column to Q. The module knows no network: A is a function from a vector to a
vector.

**Residual.** A step gives the residual of every Ritz pair without a further product. Some eigenvalue of A lies within
the residual of theta.

**Converged.** A Ritz pair has converged when its residual is at most tol times a scale (`scales`). The scale of
negative values is the largest |theta|. The scale of the others is the largest of them, and at least 1 % of the scale of
negative values. For example, let the values go from -40 to 1, with tol = 0.001. The upper end has converged at a
residual of 0.001, the lower end at 0.04. So the upper end is as accurate as it would be without the lower end.

**The largest one.** Products alone cannot prove that theta is near the largest eigenvalue: a start vector orthogonal to
the top eigenvector never finds it. So random directions are mixed into the start, and at least `least` products are
made.

**Why not stop when theta hardly changes.** A network with C outputs has C nearly equal eigenvalues at the top. While
the search tells them apart, theta changes little from step to step, but the residual is still large.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.linear_maps import Product

# Least scale of an upper end, as a share of the lower end's size: with tol=1e-3 the residual is then 1e-5 of the
# spectrum, which float32 still resolves.
_LEAST_SHARE = 0.01
# Entries of a basis that are rotated at once: a part of this size stays in a processor's cache.
_COLUMNS = 1 << 16
# Pairs to remember: more than the ten eigenvalues that nearly coincide at the top with ten outputs. With 8 a warm start
# took more products (6 for 5), with 24 no fewer.
KEPT_PAIRS = 12


@dataclass(frozen=True)
class Memory:
    """Ritz pairs that a later search can start from; only the first pair need have converged.

    Attributes:
        values: the largest values, descending.
        vectors: their orthonormal vectors, one a row.
    """

    values: tuple[float, ...]
    vectors: Tensor


@dataclass(frozen=True)
class Ritz:
    """Eigenvalue estimates from both ends of a spectrum.

    Attributes:
        values: all Ritz values of the searched space, descending.
        residuals: the residual of each value, relative to the scale of its end (`scales`).
        vectors: unit vectors of the `k` largest values, one a row.
        smallest_vector: the unit vector of the smallest value.
        converged: whether every eigenvalue that was asked for has reached the tolerance.
        products: products that the search made.
        memory: the `keep` largest pairs, converged or not, for a later search.
    """

    values: tuple[float, ...]
    residuals: tuple[float, ...]
    vectors: Tensor
    smallest_vector: Tensor
    converged: bool
    products: int
    memory: Memory


def scales(theta: Tensor, size: float = 0.0) -> Tensor:
    """The scale of each value of `theta` (in ascending order), which its residual is relative to.

    The scale of negative values is the largest |theta|, or `size` where that is more. The scale of the others is the
    largest of them, and no less than `_LEAST_SHARE` of the scale of negative values.

    Example:
        >>> scales(torch.tensor([-40.0, 0.5, 1.0])).tolist()
        [40.0, 1.0, 1.0]
    """
    radius = max(float(theta.abs().max()), size) or 1.0
    upper = max(float(theta[-1]), _LEAST_SHARE * radius)
    return torch.where(theta < 0, radius, upper).to(theta)


def rounding(dtype: torch.dtype) -> float:
    """Share of the largest value below which the part that a product adds is rounding, and no new direction."""
    return max(8 * torch.finfo(dtype).eps, 1e-12)


def unit_of(w: Tensor) -> float:
    """A power of two near the largest entry, by which division is exact.

    Without this unit squares may leave float32, and a length of 0 or inf would pass for an invariant space.
    """
    least, largest = w.aminmax()
    return math.ldexp(1.0, math.frexp(max(-float(least), float(largest)))[1])


class Krylov:
    """An orthonormal basis of span{z, A z, A^2 z, ...} and the operator in it."""

    def __init__(self, start: Tensor, most: int) -> None:
        # One row more than vectors: the last one holds the next vector.
        self._rows = start.new_empty(min(most, 32) + 1, start.numel())
        self._most = most
        torch.div(start, start.norm(), out=self._rows[0])
        self.alphas: list[float] = []
        self.betas: list[float] = []

    @property
    def basis(self) -> Tensor:
        return self._rows[: len(self.alphas)]

    @property
    def beta(self) -> float:
        """Length of the part of the last product outside the space; 0 where the space is invariant."""
        return self.betas[-1]

    def add(self, product: Product) -> None:
        """Multiply the next basis vector, and extend the space by the product."""
        j = len(self.alphas)
        if j + 1 == len(self._rows):
            self._rows = torch.cat([self._rows, self._rows.new_empty(min(j, self._most - j), self._rows.shape[1])])
        q, w = self._rows[j], self._rows[j + 1]
        image = product(q)
        unit = unit_of(image)
        torch.div(image, unit, out=w)
        alpha = float(w @ q)
        if not math.isfinite(alpha):
            raise ValueError(
                f"A matrix-vector product is not finite in {str(w.dtype).removeprefix('torch.')}. Standardize the "
                "inputs, or measure with dtype=torch.float64."
            )
        self.alphas.append(unit * alpha)
        w.sub_(q, alpha=alpha)
        if j:
            w.sub_(self._rows[j - 1], alpha=self.beta / unit)
        # One more pass is enough after these two: the part left in the space is of the size of rounding.
        w.addmv_(self.basis.T, self.basis @ w, alpha=-1)
        length = float(w.norm())
        self.betas.append(unit * length)
        if length:
            w.div_(length)

    def tridiagonal(self) -> Tensor:
        off = torch.diag(torch.tensor(self.betas[:-1], dtype=torch.float64), 1)
        return torch.diag(torch.tensor(self.alphas, dtype=torch.float64)) + off + off.T

    def rotated(self, coordinates: Tensor) -> Tensor:
        """coordinates^T basis, one vector a column of `coordinates`; the basis's memory is written over."""
        turn, basis = coordinates.T.to(self._rows), self.basis
        count = len(turn)
        for part in basis.split(_COLUMNS, dim=1):
            part[:count] = turn @ part
        # Rows that were never written take no memory on a CPU. All others would stay for as long as the vectors do.
        taken = len(basis) if basis.device.type == "cpu" else len(self._rows)
        return basis[:count] if taken <= 2 * count else basis[:count].clone()


def krylov(product: Product, start: Tensor, *, most: int) -> Iterator[Krylov]:
    """The space after each product, until `most` of them or until it is invariant."""
    most = min(most, start.numel())
    space = Krylov(start, most)
    while len(space.alphas) < most:
        space.add(product)
        yield space
        scale = max(map(abs, space.alphas + space.betas), default=1.0)
        if space.beta <= rounding(start.dtype) * scale:
            return


def lanczos(
    product: Product,
    start: Tensor,
    *,
    k: int = 1,
    smallest: bool = False,
    tol: float = 1e-3,
    least: int = 8,
    most: int = 100,
    mix: float = 0.1,
    keep: int = 1,
) -> Ritz:
    """The k largest eigenvalues (and the smallest, if asked) to a relative residual of `tol`.

    Args:
        product: v -> A v, A symmetric.
        start: any nonzero vector; the work is done in its dtype.
        k: number of the largest eigenvalues to find.
        smallest: whether to find the smallest eigenvalue too.
        tol: relative residual to reach.
        mix: length of the random vector that is added, as a multiple of the start's; 0 for a start that has one in it.
        least: smallest number of products; a Krylov space that ends before is exact.
        most: largest number of products.
        keep: Ritz pairs to remember.

    Returns:
        A `Ritz`: eigenvalues in falling order, with their vectors and relative residuals.

    Example:
        >>> a = torch.diag(torch.arange(5.0))
        >>> found = lanczos(lambda v: a @ v, torch.ones(5), smallest=True)
        >>> round(found.values[0], 4), abs(round(found.values[-1], 4)), found.converged
        (4.0, 0.0, True)
    """
    for space in krylov(product, _mixed(start, mix), most=most):
        done = len(space.alphas)
        theta, s = torch.linalg.eigh(space.tridiagonal())
        lengths = space.beta * s[-1].abs()
        residuals = lengths / scales(theta)
        residuals_to_reach = residuals[-min(k, done) :].tolist() + (residuals[:1].tolist() if smallest else [])
        converged = max(residuals_to_reach) <= tol and done >= min(max(least, k), start.numel())
        if converged or float(lengths.max()) <= rounding(start.dtype) * (float(theta.abs().max()) or 1.0):
            converged = True
            break
    count = min(max(k, keep), done)
    rotated = space.rotated(torch.cat([s.flip(1)[:, :count], s[:, : int(count < done)]], 1))
    return Ritz(
        values=tuple(theta.flip(0).tolist()),
        residuals=tuple(residuals.flip(0).tolist()),
        vectors=rotated[:k],
        smallest_vector=rotated[-1],
        converged=converged,
        products=done,
        memory=Memory(tuple(theta.flip(0)[:keep].tolist()), rotated[:keep]),
    )


def remembered(theta: Tensor, s: Tensor, basis: Tensor, keep: int) -> Memory:
    """The `keep` largest Ritz pairs; theta in ascending order, s the coordinates of the vectors, one a column."""
    kept = min(keep, len(theta))
    return Memory(tuple(theta.flip(0)[:kept].tolist()), s.flip(1)[:, :kept].to(basis).T @ basis)


def _mixed(start: Tensor, length: float) -> Tensor:
    """A vector near `start` that is orthogonal to no eigenvector; its generator is its own."""
    if not length:
        return start
    generator = torch.Generator().manual_seed(0)
    other = torch.randn(start.numel(), generator=generator, dtype=torch.float64).to(start)
    return start / start.norm() + length * other / other.norm()
