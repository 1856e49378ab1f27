"""The matrices whose products a network makes: one entry of `MATRICES` each, with all that differs between them.

To add a matrix J^T B J, add an entry with its B. The products, passes and searches take it as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normscope.curvature.operators.loss_of_outputs import OutputCurvature

if TYPE_CHECKING:
    from normscope.curvature.operators.network_products import Network

OutputMatrix = Callable[["Network", Any, tuple[int, ...]], OutputCurvature]


@dataclass(frozen=True)
class Matrix:
    """One matrix of a network.

    Attributes:
        words: its name in a sentence.
        output_matrix: gives B of J^T B J by the network, its outputs and the numbers of those that the loss reads. None
            for the Hessian, which goes through the graph of the gradient, and may have negative eigenvalues.
        draws_labels: whether B may be sampled, with labels drawn from the loss's distribution.
    """

    words: str
    output_matrix: OutputMatrix | None
    draws_labels: bool = False

    @property
    def is_hessian(self) -> bool:
        return self.output_matrix is None


def _of_loss(network: "Network", outputs: Any, output_numbers: tuple[int, ...]) -> OutputCurvature:
    return network.loss.output_curvature(outputs, output_numbers, network.leaves)


def _of_labels(network: "Network", outputs: Any, output_numbers: tuple[int, ...]) -> OutputCurvature:
    """The Fisher matrix of the outputs, or the loss's second derivative if both are equal or no labels can be drawn."""
    fisher = network.fisher_of(outputs, output_numbers)
    if fisher is None:
        return _of_loss(network, outputs, output_numbers)
    return OutputCurvature(lambda t, _: (fisher.product(t), None))


MATRICES = {
    "ggn": Matrix("generalized Gauss-Newton matrix", _of_loss),
    "hessian": Matrix("Hessian", None),
    "fisher": Matrix("Fisher matrix", _of_labels, draws_labels=True),
}
