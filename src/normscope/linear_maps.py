"""A linear map known by its product with a vector: v -> A v for a symmetric matrix, v -> J v, u -> J^T u."""

from collections.abc import Callable

from torch import Tensor

Product = Callable[[Tensor], Tensor]
