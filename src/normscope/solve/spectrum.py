r"""The spectrum of S that the rates need: L = lambda_max, mu = lambda_min, and the S^-1 norm where S is small.

For d <= SMALL the matrix S is formed once (it costs about d/40 passes over the data) and everything is exact. Above, L
comes from a Lanczos iteration on products with S and mu stays unknown (nan): a lower end of a spectrum is as dear as
the problem itself. Nothing here enters the iteration but L.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

SMALL = 128


@dataclass(frozen=True)
class Spectrum:
    """L and mu; `values`, `vectors` of S where it was formed, else None. mu = 0: S is singular, no rate is promised."""

    largest: float
    smallest: float
    values: Array | None = None
    vectors: Array | None = None

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


def exact_spectrum(s: Array) -> Spectrum:
    """Of a matrix. Eigenvalues below d eps L are rounding and count as zero.

    Example:
        >>> found = exact_spectrum(np.diag([4.0, 1.0]))
        >>> found.largest, found.smallest, found.inverse_square(np.array([2.0, 1.0]))
        (4.0, 1.0, 2.0)
    """
    values, vectors = np.linalg.eigh(s)
    largest = max(float(values[-1]), 0.0)
    values = np.where(values > len(values) * np.finfo(np.float64).eps * largest, values, 0.0)
    return Spectrum(largest, float(values[0]), values, vectors)


_AT_LEAST = 10


def lanczos_spectrum(
    product: Callable[[Array], Array], size: int, rng: np.random.Generator, *, tol: float = 1e-2, steps: int = 40
) -> Spectrum:
    """An estimate of L: the largest Ritz value plus its residual, once that is below `tol`.

    It bounds some eigenvalue from above, in all likelihood the largest: a start nearly orthogonal to its vector could
    stop early, hence at least 10 steps.
    Full reorthogonalisation: `steps` vectors of length d, less than the data for every n >= 40.
    """
    basis = np.zeros((steps + 1, size))
    start = rng.standard_normal(size)
    basis[0] = start / np.linalg.norm(start)
    diagonal: list[float] = []
    off: list[float] = []
    top = residual = 0.0
    for k in range(min(steps, size)):
        v = product(basis[k])
        diagonal.append(float(v @ basis[k]))
        for _ in range(2):
            v -= basis[: k + 1].T @ (basis[: k + 1] @ v)
        beta = float(np.linalg.norm(v))
        t = np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1)
        values, vectors = np.linalg.eigh(t)
        top, residual = float(values[-1]), beta * abs(float(vectors[-1, -1]))
        if (residual <= tol * top and k + 1 >= _AT_LEAST) or beta == 0.0:
            break
        off.append(beta)
        basis[k + 1] = v / beta
    return Spectrum(top + residual, np.nan)
