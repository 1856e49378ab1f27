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

# Of X per block: half of a usual second-level cache; 128 KiB to 1 MiB measured within a tenth of each other.
_BLOCK_BYTES = 1 << 18


class Design:
    """Z and its products. `center=False` leaves m = 0; `constant=False` has no column.

    Centring turns a constant feature into zeros. Its mean is rounded, so that rounding error would be left of it; it
    is set to zero instead (`varying`), and its coefficient stays zero.
    """

    def __init__(
        self,
        x: Array,
        weights: Array | None = None,
        *,
        center: bool = False,
        constant: bool = False,
    ) -> None:
        self.x = x
        n, d = x.shape
        weights = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
        self.weights = weights / weights.sum()
        self.signs: Array | None = None
        self.varying = np.ones(d)
        self.mean = np.zeros(d)
        if center:
            fixed = x.min(axis=0) == x.max(axis=0)
            self.mean = np.where(fixed, x[0], self._transposed(self.weights[None])[0])
            self.varying = np.where(fixed, 0.0, 1.0)
        self.constant = 0.0
        if constant:
            # An intercept column of the features' own size: with c = 1 it alone could set L, or mu.
            self.constant = float(np.sqrt(self._total_variance() / d)) or 1.0
        self.size = d + constant

    def signed(self, signs: Array) -> "Design":
        """The same rows with other signs; nothing is computed again."""
        other = copy(self)
        other.signs = signs
        return other

    def forward(self, w: Array) -> Array:
        """Z w, shape (n,): one product with X."""
        d = self.x.shape[1]
        v = self.varying * w[:d]
        p = (self.x @ v.astype(self.x.dtype)).astype(np.float64)
        p += self.constant * w[d:].sum() - self.mean @ v
        return p if self.signs is None else p * self.signs

    def backward(self, *columns: Array) -> Array:
        """Z^T diag(omega) a for each column a, shape (columns, size): X is read once for all of them."""
        weighted = np.stack(columns) * (self.weights if self.signs is None else self.weights * self.signs)
        return self._with_constant(self._transposed(weighted), weighted.sum(axis=1))

    def product(self, v: Array) -> Array:
        """S v, shape (size,): X is read once."""
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
            s[:d, d] = s[d, :d] = self.varying * self.constant * (self._transposed(self.weights[None])[0] - self.mean)
        return s

    def coefficients(self, w: Array) -> tuple[Array, float]:
        """(coef, intercept) on the caller's own features: z^T w = s (x^T coef + intercept)."""
        d = self.x.shape[1]
        coef = self.varying * w[:d]
        return coef, float(self.constant * w[d:].sum() - self.mean @ coef)

    def direction(self, coef: Array, intercept: float) -> Array:
        """The inverse of `coefficients`."""
        if not self.constant:
            return np.array(coef, dtype=np.float64)
        return np.append(coef, (intercept + self.mean @ coef) / self.constant)

    def _transposed(self, columns: Array) -> Array:
        total = np.zeros((len(columns), self.x.shape[1]))
        narrow = columns.astype(self.x.dtype)
        for rows in self._blocks():
            total += narrow[:, rows] @ self.x[rows]
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
