r"""Several batches as one: the mean of their operators, or the curvature of all data together.

    over="batches"   A = 1/B sum_b A_b                    each batch counts the same; with batch statistics A_b is the
                                                          curvature of the loss that step b descends
    over="data"      A = sum_b w_b A_b                    that of the loss of all data, L = sum_b w_b L_b: n_b / n for a
                                                          mean, 1 for a sum (`shares.py` reads them off the loss);
                                                          only where a sample's output does not depend on its batch

With batch statistics the loss of all data is that of one large batch, which its parts do not add up to: asking for it
in parts is refused, and so is cutting one batch into parts. Graphs are made anew for each product, so memory is that of
one batch and a product costs one forward a batch more than its own.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from normscope.curvature.lanczos import Product
from normscope.curvature.network import Network

MOST_BATCHES = 1000


class Several:
    """Networks on several batches, with the products of a `Network`."""

    def __init__(self, networks: Sequence[Network], weights: Sequence[float]) -> None:
        self._networks, self._weights = list(networks), list(weights)
        self.leaves, self.size = self._networks[0].leaves, self._networks[0].size

    @property
    def linear(self) -> bool:
        return all(network.linear for network in self._networks)

    @property
    def direct(self) -> bool:
        return any(network.direct for network in self._networks)

    @property
    def forward_mode(self) -> bool:
        return all(network.forward_mode for network in self._networks)

    def gradient(self, matrix: str = "") -> Tensor:
        """No graph is kept for products with `matrix`: one batch's goes before the next one's is made."""
        return self._sum(lambda network: network.gradient())

    def product(self, matrix: str) -> Product:
        return lambda v: self._sum(lambda network: network.product(matrix)(v))

    def fisher_error(self, v: Tensor) -> float:
        errors = [w * n.fisher_error(v) for w, n in zip(self._weights, self._networks, strict=True)]
        return math.sqrt(sum(error**2 for error in errors))

    def _sum(self, find: Callable[[Network], Tensor]) -> Tensor:
        total = self._weights[0] * find(self._networks[0])
        for weight, network in zip(self._weights[1:], self._networks[1:], strict=True):
            total += weight * find(network)
        return total


def refuse_linear(network: Network | Several) -> None:
    """Raises where a product has shown a loss without curvature by its outputs; other zeros are true ones."""
    if network.linear:
        raise ValueError(
            "The loss is linear in the outputs, so its Gauss-Newton matrix is zero. For log-probabilities and "
            "nll_loss ask for matrix='fisher', or hand in logits and cross_entropy; else matrix='hessian'."
        )


def as_batches(batch: Any, micro_batch: int | None, device: torch.device) -> list[tuple[Any, Any]]:
    """[(x, y)] for one batch, its parts if asked for, or all of a loader's."""
    if is_one_batch(batch):
        found = [tuple(batch)] if micro_batch is None else _parts(tuple(batch), micro_batch)
    elif micro_batch is not None:
        raise ValueError("micro_batch= cuts one batch; a loader has its batches already.")
    else:
        found = [tree_map_only(Tensor, lambda t: t.to(device), item) for item in _all(batch)]
    for pair in found:
        if any(isinstance(leaf, np.ndarray) for leaf in tree_leaves(pair)):
            raise ValueError("A batch is of tensors; got NumPy arrays. Convert them: torch.from_numpy(x).")
        if any(isinstance(leaf, Tensor) and leaf.ndim and not len(leaf) for leaf in tree_leaves(pair[0])):
            raise ValueError("The batch is empty: it has no sample to take a loss of. Hand in at least one.")
    return found


def _all(batch: Any) -> list[tuple[Any, Any]]:
    if not isinstance(batch, Iterable) or isinstance(batch, (str, bytes, dict)):
        raise ValueError(f"batch is a pair (x, y) or an iterable of such pairs; got {type(batch).__name__}.")
    if isinstance(batch, (tuple, list)) and any(isinstance(part, Tensor) for part in batch):
        raise ValueError(
            f"A batch is a pair (x, y); got {len(batch)} parts. What the model takes beside x goes into x, what the "
            "loss takes beside y into y, as tuples."
        )
    found = list(islice(batch, MOST_BATCHES + 1))
    if len(found) > MOST_BATCHES:
        raise ValueError(
            f"The loader gives more than {MOST_BATCHES} batches, and all are held. Hand in fewer: "
            "itertools.islice(loader, 50)."
        )
    for item in found:
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise ValueError(f"A loader's batches are pairs (x, y); got {type(item).__name__}.")
    if not found:
        raise ValueError("The loader gives no batch.")
    return [tuple(item) for item in found]


def is_one_batch(batch: Any) -> bool:
    """A tuple of two, or a list of two with a tensor in it, as DataLoader gives a batch."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return False
    if isinstance(batch, tuple) and all(isinstance(part, (tuple, list)) and len(part) == 2 for part in batch):
        raise ValueError(
            "A tuple of two pairs may be one batch or two. Hand in a list: [first, second] for two, [batch] for one."
        )
    return isinstance(batch, tuple) or any(isinstance(part, Tensor) for part in batch)


def samples(batch: tuple[Any, Any]) -> int:
    return next((len(t) for t in tree_leaves(batch) if isinstance(t, Tensor) and t.ndim), 0)


def _parts(batch: tuple[Any, Any], size: int) -> list[tuple[Any, Any]]:
    x, y = batch
    if size < 1 or not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise ValueError(f"micro_batch= cuts tensors x and y into parts of at least one sample; got {size}.")
    return list(zip(x.split(size), y.split(size), strict=True))
