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
from collections.abc import Callable, Sequence

from torch import Tensor

from normscope.curvature.eigensolvers.lanczos import Product
from normscope.curvature.operators.network_products import Network


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

    def form(self, matrix: str, v: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        return self._sum(lambda network: network.form(matrix, v)[0]), lambda: self.product(matrix)(v)

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
