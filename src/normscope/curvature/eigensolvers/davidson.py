r"""The top of a spectrum from the memory of an earlier search: generalized Davidson.

A search remembers Ritz pairs. The next search, for a matrix A that has changed little, starts from them. All that is
known of A is put into a matrix B. Let V be the vectors multiplied so far and P = 1 - V V^T. Let (theta_i, y_i) be the
remembered pairs, scaled so that theta_1 is the value that the first product finds. Then

    B = A on V, with all that A couples V to;     P (sum_i theta_i y_i y_i^T) P elsewhere
    next vector: P u / |P u|,   u the top eigenvector of B

So no product is spent on remembered pairs. A Krylov space separates near-equal neighbours from the top only after many
products; here the memory knows them from the start. Without a memory u lies in the Krylov space, and this is Lanczos.

The pair that is found and its residual are those of A on V alone: the memory decides only which vector is multiplied
next. Nothing is remembered of the lower end; there the next vector is the residual. All vectors lie in one orthonormal
basis (the y_i, the start, one row for each product), in which B and the Ritz pairs are small matrices.

Sources: Davidson 1975; Morgan and Scott 1986 (other preconditioners); Stathopoulos and Saad 1998 (what to keep).
"""

from dataclasses import replace

import torch
from torch import Tensor

from normscope.curvature.eigensolvers.lanczos import Memory, Ritz, lanczos, remembered, scales, unit_of
from normscope.linear_maps import Product

# Fewest products of a search, from a fresh start and from a memory.
FEWEST_PRODUCTS, FEWEST_WARM_PRODUCTS = 6, 3


class _Basis:
    """Orthonormal rows; vectors go in and come out as coordinates, in float64."""

    def __init__(self, like: Tensor) -> None:
        self._room = like.new_empty(16, like.numel())
        self.rows = self._room[:0]

    def coordinates(self, w: Tensor) -> Tensor:
        """The coordinates of w; its part outside the basis becomes the next row."""
        unit = unit_of(w)
        w = w / unit
        n, size = len(self.rows), float(w.norm())
        inside = w.new_zeros(n)
        # Two passes are enough: the part that the first one leaves is of the size of rounding.
        for _ in range(2):
            part = self.rows @ w
            w, inside = w - part @ self.rows, inside + part
        beta = float(w.norm())
        if beta <= 100 * torch.finfo(w.dtype).eps * size:
            return unit * inside.double().cpu()
        if n == len(self._room):
            self._room = torch.cat([self._room, torch.empty_like(self._room)])
        self._room[n] = w / beta
        self.rows = self._room[: n + 1]
        return unit * torch.cat([inside.double().cpu(), torch.tensor([beta], dtype=torch.float64)])

    def vector(self, coordinates: Tensor) -> Tensor:
        return coordinates.to(self.rows) @ self.rows[: len(coordinates)]

    def stacked(self, coordinates: list[Tensor]) -> Tensor:
        """Coordinates as a matrix, one vector a row; zero along rows of the basis that came later."""
        rows = torch.zeros(len(coordinates), len(self.rows), dtype=torch.float64)
        for row, part in zip(rows, coordinates, strict=True):
            row[: len(part)] = part
        return rows


class DavidsonSearch:
    """The vectors multiplied so far with their images, the Ritz pairs in their span, and B.

    Args:
        memory: the remembered pairs.
        like: any vector of the operator's size, dtype and device.
        size: the largest |eigenvalue| of A, as far as it is known; 0 where nothing is known. With it the scale of
            residuals is no less than in a space that has shown both ends (`lanczos.scales`).
    """

    def __init__(self, memory: Memory, like: Tensor, size: float = 0.0) -> None:
        self._size = size
        self.basis = _Basis(like)
        self._recalled = [self.basis.coordinates(y) for y in memory.vectors.to(like)]
        self._values = torch.tensor(memory.values, dtype=torch.float64)
        self._multiplied: list[Tensor] = []
        self._images: list[Tensor] = []

    def multiply(self, v: Tensor, product: Product) -> None:
        """Multiply the vector with coordinates v, and update the Ritz pairs."""
        v = v / v.norm()
        if self._multiplied:
            # Orthogonalized again: a short direction keeps a part along the others that rounding left.
            v = v - self.basis.stacked(self._multiplied).T @ (self.basis.stacked(self._multiplied) @ v)
        self._multiplied.append(v / v.norm())
        self._images.append(self.basis.coordinates(product(self.basis.vector(self._multiplied[-1]))))
        self.space, self._of = self.basis.stacked(self._multiplied), self.basis.stacked(self._images)
        inside = self.space @ self._of.T
        self.theta, s = torch.linalg.eigh((inside + inside.T) / 2)
        self.ritz = s.T @ self.space
        self.size = max(float(self.theta.abs().max()), self._size) or 1.0
        self._left = s.T @ self._of - self.theta[:, None] * self.ritz
        self.lengths = torch.linalg.vector_norm(self._left, dim=1)
        self.residuals = self.lengths / scales(self.theta, self.size)

    def scale(self) -> None:
        """Scale the remembered values, so that the first of them is the value that the first product found."""
        first = float(self._values[0])
        self._values = self._values * (max(float(self.theta[0]) / first, 0.0) if first else 0.0)

    def known_matrix(self) -> tuple[Tensor, Tensor]:
        """The matrix B of all that is known of A, and the projector P out of the space of multiplied vectors."""
        outside = torch.eye(len(self.basis.rows), dtype=torch.float64) - self.space.T @ self.space
        recalled = self.basis.stacked(self._recalled) @ outside
        half = self.space.T @ self._of
        across = half @ outside
        matrix = (half - across + (half - across).T) / 2 + across + across.T
        return matrix + recalled.T @ (self._values[:, None] * recalled), outside

    def towards_the_top(self) -> Tensor | None:
        """The direction to multiply next, or None where the space is invariant."""
        known, outside = self.known_matrix()
        directions = (outside @ torch.linalg.eigh(known).eigenvectors).T.flip(0)
        return next((direction for direction in directions if float(direction.norm()) > 1e-6), None)

    def towards_the_bottom(self) -> Tensor | None:
        """The residual of the lower end; None where it lies within the space, and so is rounding alone."""
        outside: Tensor = self.known_matrix()[1] @ self._left[0]
        return outside if float(outside.norm()) > 1e-6 * float(self._left[0].norm()) else None

    def memory(self, keep: int) -> Memory:
        """The top pair, and the top pairs of B orthogonal to it."""
        top, (known, _) = self.ritz[-1], self.known_matrix()
        across = torch.eye(len(top), dtype=torch.float64) - torch.outer(top, top)
        # Shifts the top pair so low that it is not among the top ones again.
        low = 2 * float(known.norm()) or 1.0
        rest = torch.linalg.eigh(across @ known @ across - low * torch.outer(top, top))
        others = remembered(rest.eigenvalues, rest.eigenvectors, self.basis.rows, min(keep, len(top)) - 1)
        vectors = torch.cat([self.basis.vector(top)[None], others.vectors])
        return Memory((float(self.theta[-1]), *others.values), vectors)

    def run_until_converged(
        self, product: Product, done: int, *, smallest: bool, tol: float, least: int, most: int, keep: int
    ) -> Ritz:
        """Go on with the search after `done` products, until it has converged or `most` products are made."""
        while True:
            ends = {-1: float(self.residuals[-1])} | ({0: float(self.residuals[0])} if smallest else {})
            end = max(ends, key=ends.__getitem__)
            direction = self.towards_the_bottom() if end == 0 and ends[0] > tol else None
            direction = self.towards_the_top() if direction is None else direction
            converged = direction is None or (ends[end] <= tol and done >= least)
            if direction is None or converged or done >= most:
                break
            done += 1
            self.multiply(direction, product)
        return Ritz(
            values=tuple(self.theta.flip(0).tolist()),
            residuals=tuple(self.residuals.flip(0).tolist()),
            vectors=self.basis.vector(self.ritz[-1])[None],
            smallest_vector=self.basis.vector(self.ritz[0]),
            converged=converged,
            products=done,
            memory=self.memory(keep),
        )


def davidson(
    product: Product,
    memory: Memory,
    start: Tensor,
    fresh: Tensor,
    *,
    smallest: bool = False,
    tol: float = 1e-3,
    least: int = FEWEST_WARM_PRODUCTS,
    most: int = 100,
    keep: int = 1,
) -> Ritz:
    """The largest eigenvalue (and the smallest, if asked) to a relative residual of `tol`.

    Args:
        memory: of an operator near this one.
        start: a vector near the memory's first one, with a part of those that may have overtaken it.
        fresh: a start vector for a new search, at the cost of one product, where the memory is of another operator:
            where the relative residual of `start` is 1 or more, so that less of A v lies along v than across it. Also
            where v^T A v < 0: B is zero in unknown directions, so unknown directions would look better than v.
        smallest, tol, least, most, keep: as for `lanczos`.
    """
    search = DavidsonSearch(memory, start)
    search.multiply(search.basis.coordinates(start), product)
    if most > 1 and (float(search.residuals[0]) >= 1 or float(search.theta[0]) < 0):
        least = FEWEST_PRODUCTS
        ritz = lanczos(product, fresh, smallest=smallest, tol=tol, least=least, most=most - 1, mix=0.0, keep=keep)
        return replace(ritz, products=ritz.products + 1)
    search.scale()
    return search.run_until_converged(product, 1, smallest=smallest, tol=tol, least=least, most=most, keep=keep)
