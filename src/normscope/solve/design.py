r"""The data as an operator: rows z_i = s_i (x_i - m, c) with weights omega_i that sum to one, never copied.

    symbol    meaning
    X         (n, d), float32 or float64, as the caller holds it
    s_i       sign of row i: -y_i for halfspaces, 1 for least squares
    m         weighted mean of the rows of X, or zero
    c         the constant column that carries an intercept; no column where c = 0
    S         sum_i omega_i z_i z_i^T; signs drop out of it

Products read X in blocks that fit a core's cache, so that two columns through Z^T cost little more than one, and S v
reads X once. Vectors of length n are float64 whatever X is; only products with X are in X's own precision.
Centring is inside the products: Z w = s (X w - m^T w + c w_0).
"""

from collections.abc import Iterator
from copy import copy

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

# Bytes of X per block, which fit a usual second-level cache. With half of them the calls take a tenth more (d = 100).
_BLOCK_BYTES = 1 << 19
# Entries of a vector per block: temporaries stay in the cache, and are too small for the allocator to need new pages.
_ENTRIES = 8192


class Design:
    """Z and its products. `center=False` leaves m = 0; `constant=False` has no column.

    Centring turns a constant feature into zeros. The feature's mean is rounded, so that centring would leave rounding
    error; `varying` sets the feature to zero instead, and its coefficient stays zero. `penalized` is zero in the
    intercept's place and one elsewhere. Squares of X must not leave the range of its type: see `check_range`.
    """

    def __init__(self, x: Array, weights: Array | None = None, *, center: bool = False, constant: bool = False) -> None:
        self.x = x
        n, d = x.shape
        weights = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
        # Divide by the largest weight first: a sum of large weights may overflow.
        weights = weights / weights.max()
        self.weights = self._signed_weights = weights / weights.sum()
        self.signs: Array | None = None
        low, high = x.min(axis=0).astype(np.float64), x.max(axis=0).astype(np.float64)
        with np.errstate(over="ignore"):
            largest = high - low if center else np.maximum(np.abs(low), np.abs(high))
        check_range("spread of a feature" if center else "size of a feature", float(largest.max()), x.dtype)
        self.varying = np.ones(d)
        self.mean = np.zeros(d)
        if center:
            self.mean = np.where(low == high, low, self._transposed(np.ones(n))[0])
            self.varying = np.where(low == high, 0.0, 1.0)
        self.constant = 0.0
        if constant:
            # An intercept column of the features' own size: with c = 1 it alone could set L, or mu.
            self.constant = float(np.sqrt(self._total_variance() / d)) or 1.0
        self.size = d + constant
        self.penalized = np.append(np.ones(d), np.zeros(self.size - d))

    def signed(self, signs: Array) -> "Design":
        """The same rows with other signs; nothing is computed again."""
        other = copy(self)
        other.signs, other._signed_weights = signs, signs * self.weights
        return other

    def forward(self, w: Array) -> Array:
        """Z w, shape (n,): one product with X."""
        d = self.x.shape[1]
        v = self.varying * w[:d]
        p = (self.x @ v.astype(self.x.dtype)).astype(np.float64, copy=False)
        p += self.constant * w[d:].sum() - self.mean @ v
        if self.signs is not None:
            p *= self.signs
        return p

    def backward(self, *columns: Array) -> Array:
        """Z^T diag(omega) a for each column a, shape (columns, size): one pass over X for all of them."""
        return self._with_constant(self._transposed(*columns), np.array([self._signed_weights @ a for a in columns]))

    def product(self, v: Array) -> Array:
        """S v, shape (size,): one pass over X."""
        d = self.x.shape[1]
        within = self.varying * v[:d]
        narrow, total, sums = within.astype(self.x.dtype), np.zeros(d), 0.0
        shift = self.constant * v[d:].sum() - self.mean @ within
        for rows in self._blocks():
            p = ((self.x[rows] @ narrow).astype(np.float64) + shift) * self.weights[rows]
            total += p.astype(self.x.dtype) @ self.x[rows]
            sums += float(p.sum())
        return self._with_constant(total[None], np.array([sums]))[0]

    def gram(self) -> Array:
        """S as a matrix in float64, from blocks centred before they are multiplied; for small d."""
        d = self.x.shape[1]
        s = np.zeros((self.size, self.size))
        for rows in self._blocks():
            block = self.x[rows].astype(np.float64) - self.mean
            s[:d, :d] += (block * self.weights[rows, None]).T @ block
        if self.constant:
            s[d, d] = self.constant**2
            left = self._transposed(np.ones(len(self.x)) if self.signs is None else self.signs)[0] - self.mean
            s[:d, d] = s[d, :d] = self.varying * self.constant * left
        return s

    def mean_square(self, p: Array) -> float:
        """sum_i omega_i p_i^2, in blocks, so that the squares never leave the cache."""
        blocks = (slice(start, start + _ENTRIES) for start in range(0, len(p), _ENTRIES))
        return sum(float(self.weights[rows] @ (p[rows] * p[rows])) for rows in blocks)

    def coefficients(self, w: Array) -> tuple[Array, float]:
        """(coef, intercept) on the caller's own features: z^T w = s (x^T coef + intercept)."""
        d = self.x.shape[1]
        coef = self.varying * w[:d]
        return coef, float(self.constant * w[d:].sum() - self.mean @ coef)

    def direction(self, coef: Array, intercept: Array | float) -> Array:
        """The inverse of `coefficients`; coef (..., d) and intercept (...) may be those of several directions."""
        if not self.constant:
            return np.array(coef, dtype=np.float64)
        column = (intercept + coef @ self.mean) / self.constant
        return np.concatenate([coef, np.asarray(column)[..., None]], axis=-1)

    def is_rounding(self, length: float, factor: float, largest: float) -> bool:
        """Whether a mean of `factor` x of this length is a zero mean up to rounding; `largest`: L."""
        size = np.sqrt(largest) + np.linalg.norm(self.mean)
        return bool(length <= 4.0 * np.finfo(self.x.dtype).eps * factor * size)

    def _transposed(self, *columns: Array) -> Array:
        """X^T of each column with weights and signs, in X's type block by block."""
        total = np.zeros((len(columns), self.x.shape[1]))
        for rows in self._blocks():
            block = self.x[rows]
            weighted = np.empty((len(columns), len(block)), self.x.dtype)
            for column, narrow in zip(columns, weighted, strict=True):
                np.multiply(column[rows], self._signed_weights[rows], out=narrow, casting="same_kind")
            total += weighted @ block
        return total

    def _with_constant(self, products: Array, sums: Array) -> Array:
        products = self.varying * (products - sums[:, None] * self.mean)
        return np.column_stack([products, sums * self.constant]) if self.constant else products

    def _total_variance(self) -> float:
        total = 0.0
        for rows in self._blocks():
            block = self.x[rows] - self.mean
            total += float(self.weights[rows] @ np.einsum("ij,ij->i", block, block))
        return total

    def _blocks(self) -> Iterator[slice]:
        n, d = self.x.shape
        rows = max(16, _BLOCK_BYTES // (d * self.x.itemsize))
        return (slice(start, start + rows) for start in range(0, n, rows))


def check_range(what: str, largest: float, dtype: np.dtype) -> None:
    """A ValueError where squares, which S and rho are made of, would overflow, or all of them underflow.

    `largest` must be zero or lie between 1/r and r, r = max^(3/8): 4e115 for float64, 3e14 for float32. A quarter of
    the exponents is left for sums, for L and for products with a penalty.
    """
    limit = float(np.finfo(dtype).max) ** 0.375
    if largest and not 1.0 / limit <= largest <= limit:
        raise ValueError(
            f"The largest {what} must lie between {1.0 / limit:.0e} and {limit:.0e} in {dtype}, so that squares are "
            f"numbers too; got {largest:.3g}. Rescale, as StandardScaler does."
        )
