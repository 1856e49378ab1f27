r"""Several batches as one: the mean of their operators, or the curvature of all data together.

    over="batches"   A = 1/B sum_b A_b                    each batch counts the same; with batch statistics A_b is the
                                                          curvature of the loss that step b descends
    over="data"      A = sum_b w_b A_b,  w_b = n_b / n    that of the loss of all data (w_b = 1 for losses that sum);
                                                          only where a sample's output does not depend on its batch

With batch statistics the loss of all data is that of one large batch, which its parts do not add up to: asking for it
in parts is refused, and so is cutting one batch into parts. Graphs are made anew for each product, so memory is that of
one batch and a product costs one forward a batch more than its own.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from normscope.choices import check_choice
from normscope.curvature.network import Network, Product
from normscope.curvature.statistics import over_the_batch

OVER = ("batches", "data")
MOST_BATCHES = 1000


class Several:
    """Networks on several batches, with the products of a `Network`."""

    def __init__(self, networks: Sequence[Network], weights: Sequence[float]) -> None:
        self._networks, self._weights = list(networks), list(weights)
        self.leaves, self.size = self._networks[0].leaves, self._networks[0].size

    @property
    def forward_mode(self) -> bool:
        return all(network.forward_mode for network in self._networks)

    def gradient(self) -> Tensor:
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


def as_batches(batch: Any, micro_batch: int | None, device: torch.device) -> list[tuple[Any, Any]]:
    """[(x, y)] for one batch, its parts if asked for, or all of a loader's."""
    if is_one_batch(batch):
        one = tuple(batch)
        return [one] if micro_batch is None else _parts(one, micro_batch)
    if micro_batch is not None:
        raise ValueError("micro_batch= cuts one batch; a loader has its batches already.")
    if not isinstance(batch, Iterable):
        raise ValueError(f"batch is a pair (x, y) or an iterable of such pairs; got {type(batch).__name__}.")
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
    return [tree_map_only(Tensor, lambda t: t.to(device), tuple(item)) for item in found]


def is_one_batch(batch: Any) -> bool:
    """A tuple of two, or a list of two with a tensor in it, as DataLoader gives a batch."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return False
    return isinstance(batch, tuple) or any(isinstance(part, Tensor) for part in batch)


def weights(
    batches: Sequence[tuple[Any, Any]], over: str, stats: str, model: nn.Module, reduction: Callable[[], str]
) -> list[float]:
    """Of each batch's operator; refused where the parts' operators do not add up to what is asked for."""
    check_choice("over", over, OVER)
    if over == "batches" or len(batches) == 1:
        return [1 / len(batches)] * len(batches)
    layers = over_the_batch(model) if stats != "running" else {}
    if layers:
        raise ValueError(
            f"With stats={stats!r} the layers {', '.join(list(layers)[:3])}{', ...' if len(layers) > 3 else ''} take "
            "their statistics over the batch, so the loss of all data is not the sum of its parts: each part's "
            "curvature is that of another loss. Hand in the whole as one batch, take the mean over batches "
            "(over='batches'), or ask for stats='running'."
        )
    sizes = [samples(batch) for batch in batches]
    return [1.0] * len(batches) if reduction() == "sum" else [size / sum(sizes) for size in sizes]


def reduction_of(network: Network) -> str:
    """ "mean" or "sum", by the loss of the outputs twice over."""
    with torch.no_grad():
        output = network.output()
        once, twice = float(network.loss(output)), float(network.loss_twice(output))
    for name, expected in (("mean", once), ("sum", 2 * once)):
        if math.isclose(twice, expected, rel_tol=1e-4):
            return name
    raise ValueError("The loss is neither a mean nor a sum over samples, so batches cannot be put together.")


def samples(batch: tuple[Any, Any]) -> int:
    return next((len(t) for t in tree_leaves(batch) if isinstance(t, Tensor) and t.ndim), 0)


def _parts(batch: tuple[Any, Any], size: int) -> list[tuple[Any, Any]]:
    x, y = batch
    if size < 1 or not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise ValueError(f"micro_batch= cuts tensors x and y into parts of at least one sample; got {size}.")
    return list(zip(x.split(size), y.split(size), strict=True))
