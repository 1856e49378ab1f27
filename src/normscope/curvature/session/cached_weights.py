"""A cache of the batches' weights in the loss of all data, which cost passes over all batches."""

from collections.abc import Callable
from dataclasses import dataclass, field

from normscope.curvature.operators.network_products import Network
from normscope.curvature.operators.several_batches import refuse_mixing, shares
from normscope.curvature.operators.statistics import differentiable


@dataclass
class CachedWeights:
    """The weights of the same batches of one session, computed when they are first asked for.

    Attributes:
        independent: statistics modes in which outputs were found to depend on no other sample.
        weights: the weight of each batch, None until they are computed. They are those of the loss alone, so they hold
            in every mode.
    """

    independent: set[str] = field(default_factory=set)
    weights: list[float] | None = None

    def find(self, stats: str, networks: Callable[[str], list[Network]]) -> list[float]:
        """The weight of each batch; refused where outputs depend on other samples in this statistics mode.

        Args:
            stats: the statistics mode.
            networks: gives the network on each batch in a statistics mode.
        """
        shown_in = differentiable(stats)
        if shown_in not in self.independent:
            refuse_mixing(networks(shown_in)[0])
            self.independent.add(shown_in)
        if self.weights is None:
            self.weights = shares(networks(stats))
        return self.weights
