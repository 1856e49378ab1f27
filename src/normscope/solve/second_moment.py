r"""The second moment S of the data and its spectrum: L = lambda_max, mu = lambda_min, the S^-1 norm where S is small.

For d <= SMALL the matrix S is formed once (which costs about d/40 passes over the data) and everything is exact. Above,
L comes from a Lanczos iteration on products with S, and mu stays unknown (nan): finding the lower end of a spectrum
costs as much as solving the problem. Only L enters the GDNP iteration. Where L is an estimate, `certain` is False.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.solve.design import Design

Array = NDArray[np.floating]

SMALL = 128


@dataclass(frozen=True)
class SecondMomentSpectrum:
    """L and mu, with the eigenvalues and eigenvectors of S where S was formed (else None).

    mu = 0 means that S is singular; then no rate is promised.
    """

    largest: float
    smallest: float
    values: Array | None = None
    vectors: Array | None = None

    @property
    def certain(self) -> bool:
        """Whether S was formed, so that L is exact and the S^-1 norm is known."""
        return self.values is not None

    @property
    def rate(self) -> float:
        """1 - mu/L, the factor by which the direction's error shrinks; 1 where mu = 0, nan where mu is unknown."""
        return 1.0 - self.smallest / self.largest if self.largest > 0.0 else 1.0

    def inverse_square(self, g: Array) -> float:
        """g^T S^+ g on the range of S; nan where S was not formed."""
        if self.values is None or self.vectors is None:
            return np.nan
        kept = self.values > 0
        inside = self.vectors.T[kept] @ g
        return float(np.sum(inside**2 / self.values[kept]))


def exact_spectrum(s: Array) -> SecondMomentSpectrum:
    """The spectrum of a matrix. Eigenvalues below d eps L are rounding and count as zero.

    Example:
        >>> spectrum = exact_spectrum(np.diag([4.0, 1.0]))
        >>> spectrum.largest, spectrum.smallest, spectrum.inverse_square(np.array([2.0, 1.0]))
        (4.0, 1.0, 2.0)
    """
    values, vectors = np.linalg.eigh(s)
    largest = max(float(values[-1]), 0.0)
    values = np.where(values > len(values) * np.finfo(np.float64).eps * largest, values, 0.0)
    return SecondMomentSpectrum(largest, float(values[0]), values, vectors)


def lanczos_spectrum(
    product: Callable[[Array], Array], size: int, rng: np.random.Generator, *, tol: float = 1e-2, steps: int = 40
) -> SecondMomentSpectrum:
    """An estimate of L: the largest Ritz value plus its residual, once the relative residual is below `tol`.

    The estimate bounds some eigenvalue from above, not always the largest. In a cluster at the top it can be a
    twentieth too small, which does no harm, since a step with L > lambda_max / 2 still contracts every error. S of an
    orthogonal design has few different eigenvalues, so that the Krylov space closes (beta = 0) after as many steps; a
    new random vector opens it again, and at least 10 steps are taken. Where L is still too small, GDNP notices: it
    halves steps that do not lower rho as they should.
    Full reorthogonalisation keeps `steps` vectors of length d, less than the data for every n >= 40.

    scipy's `eigsh` does not replace this function: it makes at least 21 products where this one makes 10 or 11, and it
    gives the Ritz value without its residual, up to 0.8 % lower (d = 200 Gaussian features), not an upper bound.
    """
    basis = np.zeros((steps + 1, size))
    t = np.zeros((steps + 1, steps + 1))
    basis[0] = _new_direction(basis[:0], rng)
    top = residual = 0.0
    for k in range(min(steps, size)):
        v = product(basis[k])
        t[k, k] = v @ basis[k]
        v = _orthogonal(v, basis[: k + 1])
        beta = float(np.linalg.norm(v))
        values, vectors = np.linalg.eigh(t[: k + 1, : k + 1])
        top, residual = float(values[-1]), beta * abs(float(vectors[-1, -1]))
        if (residual <= tol * top and k + 1 >= _AT_LEAST) or k + 1 == size:
            break
        if beta > _CLOSED * top:
            t[k, k + 1] = t[k + 1, k] = beta
            basis[k + 1] = v / beta
        else:
            basis[k + 1] = _new_direction(basis[: k + 1], rng)
    return SecondMomentSpectrum(top + residual, np.nan)


_AT_LEAST = 10
_CLOSED = 1e-12


def _orthogonal(v: Array, basis: Array) -> Array:
    for _ in range(2):
        v = v - basis.T @ (basis @ v)
    return v


def _new_direction(basis: Array, rng: np.random.Generator) -> Array:
    v = _orthogonal(rng.standard_normal((basis.shape[1],)), basis)
    return v / np.linalg.norm(v)


def second_moment(
    design: Design, *, ridge: float = 0.0, seed: int = 0
) -> tuple[Callable[[Array], Array], SecondMomentSpectrum]:
    """(v -> (S + ridge I) v, its spectrum): from a matrix for d <= SMALL, else by passes over X and Lanczos."""
    if design.size <= SMALL:
        s = design.gram() + ridge * np.eye(design.size)
        return s.__matmul__, exact_spectrum(s)

    def product(v: Array) -> Array:
        return design.product(v) + ridge * v

    return product, lanczos_spectrum(product, design.size, np.random.default_rng(seed))
