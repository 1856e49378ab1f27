r"""Several batches together: the mean of their operators, or the curvature of the loss of all data.

    over="batches"   A = 1/B sum_b A_b                    each batch counts the same; with batch statistics A_b is the
                                                          curvature of the loss that step b descends
    over="data"      A = sum_b w_b A_b                    the curvature of the loss of all data, L = sum_b w_b L_b:
                                                          w_b = n_b / n for a mean, 1 for a sum (`shares`); only
                                                          where a sample's output does not depend on its batch

With batch statistics the loss of all data is that of one large batch, and its parts do not add up to it. Asking for it
in parts is refused, and so is cutting one batch into parts. Each product makes new graphs, so memory is that of one
batch, and a product costs one forward more for each batch.

**The weights w_b.** Where L = sum_b w_b L_b with constants w_b, the slopes with respect to the outputs f_b of part b
are proportional at any outputs:

    dL/df_b = w_b dL_b/df_b,        w_b = <dL/df_b, dL_b/df_b> / ||dL_b/df_b||^2

So w_b is read off the loss, whatever the loss divides by: samples, class weights, targets that are not ignored. For
example, a mean over parts of 30 and 10 samples has the weights 0.75 and 0.25. The slopes are not taken at the outputs
themselves, where all of them may be zero, but at two mixtures of the outputs, which stay in the loss's domain. Where
the slopes are not proportional, or w_b differs between the mixtures, the loss is no such sum and is refused.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from normscope.curvature.operators.network_products import FirstGraph, MatrixProduct, Network
from normscope.curvature.operators.statistics import mode_of, over_the_batch
from normscope.messages.choices import check_choice

AVERAGES = ("batches", "data")
_SHARES_OF_NEIGHBOUR = (0.3, 0.45)
_TOLERANCE = 1e-3


class NetworksOnBatches:
    """Networks on several batches, with the products of a `Network`.

    Args:
        networks: one network for each batch.
        weights: the weight of each batch's operator in the sum.
    """

    def __init__(self, networks: Sequence[Network], weights: Sequence[float]) -> None:
        self._networks, self._weights = list(networks), list(weights)
        self.leaves, self.size = self._networks[0].leaves, self._networks[0].size

    @property
    def forward_mode(self) -> bool:
        return all(network.forward_mode for network in self._networks)

    def gradient_and_graph(self, matrix: str) -> tuple[Tensor, None]:
        return self._sum(lambda network: network.gradient()), None

    def product(self, matrix: str, graph: FirstGraph | None = None) -> "ProductsOnBatches":
        """The product v -> A v, which makes the graph of one batch after another, so only one is in memory."""
        return ProductsOnBatches(self._networks, self._weights, matrix)

    def quadratic_form(self, matrix: str, v: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        return self._sum(lambda network: network.quadratic_form(matrix, v)[0]), lambda: self.product(matrix)(v)

    def fisher_error(self, v: Tensor) -> float:
        errors = [w * n.fisher_error(v) for w, n in zip(self._weights, self._networks, strict=True)]
        return math.sqrt(sum(error**2 for error in errors))

    def _sum(self, find: Callable[[Network], Tensor]) -> Tensor:
        return _weighted_sum(map(find, self._networks), self._weights)


class ProductsOnBatches:
    """The product v -> A v with the mean of several batches' operators, and facts on their losses.

    Attributes:
        reads_parameters: whether the loss of one of the batches reads parameters itself.
        is_zero: whether the losses of all batches have no curvature. Both are known after the first product.
    """

    def __init__(self, networks: Sequence[Network], weights: Sequence[float], matrix: str) -> None:
        self._networks, self._weights, self._matrix = networks, weights, matrix
        self.reads_parameters = self.is_zero = False

    def __call__(self, v: Tensor) -> Tensor:
        reads_parameters, is_zero = [], []

        def image_of(network: Network) -> Tensor:
            # Local to this call, so that the graph is freed before the next network makes its own.
            product = network.product(self._matrix)
            reads_parameters.append(product.reads_parameters)
            is_zero.append(product.is_zero)
            return product(v)

        image = _weighted_sum(map(image_of, self._networks), self._weights)
        self.reads_parameters, self.is_zero = any(reads_parameters), all(is_zero)
        return image


def _weighted_sum(images: Iterable[Tensor], weights: Sequence[float]) -> Tensor:
    total: Tensor | None = None
    for weight, image in zip(weights, images, strict=True):
        total = weight * image if total is None else total.add_(weight * image)
    assert total is not None
    return total


def refuse_linear(product: MatrixProduct | ProductsOnBatches) -> None:
    """Raise where a product has shown that the loss is linear in its outputs; other zero products are true."""
    if product.is_zero:
        raise ValueError(
            "The loss is linear in the outputs, so its Gauss-Newton matrix is zero. For log-probabilities and "
            "nll_loss ask for matrix='fisher', or hand in logits and cross_entropy; else matrix='hessian'."
        )


def check_parts(model: nn.Module, over: str, stats: str, parts: int) -> bool:
    """Whether parts are put together to the loss of all data; refused where layers take statistics over a part."""
    check_choice("over", over, AVERAGES)
    if over == "batches" or parts == 1:
        return False
    layers = over_the_batch(model, stats)
    if layers:
        raise ValueError(
            f"With stats={stats!r} the layers {', '.join(list(layers)[:3])}{', ...' if len(layers) > 3 else ''} take "
            "their statistics over the batch, so the loss of all data is not the sum of its parts: each part's "
            "curvature is that of another loss. Hand in the whole as one batch, take the mean over batches "
            "(over='batches')" + (", or ask for stats='running'." if mode_of(stats).of_the_batch else ".")
        )
    return True


def refuse_mixing(network: Network) -> None:
    """Refuse a forward without such a layer whose outputs depend on other samples all the same."""
    if network.mixes(whole=True):
        raise ValueError(
            "The output of one sample depends on others of its batch (a normalizer inside the forward, perhaps), so "
            "the loss of all data is not the sum of its parts. Hand in the whole as one batch, or take the mean over "
            "batches (over='batches')."
        )


def shares(networks: Sequence[Network]) -> list[float]:
    """The weight w_b of each batch."""
    with torch.no_grad():
        outputs = [tree_flatten(network.output()) for network in networks]
    structure = outputs[0][1]
    sizes = [[len(leaf) for leaf in leaves] for leaves, _ in outputs]
    targets = [network.loss.targets for network in networks]
    joined_targets = tree_map(_joined, *targets)
    ratios = []
    for share in _SHARES_OF_NEIGHBOUR:
        joined_outputs = map(torch.cat, zip(*(leaves for leaves, _ in outputs), strict=True))
        mixed_outputs = [_mixed(output, share) for output in joined_outputs]
        outputs_by_part = zip(*(leaf.split([n[i] for n in sizes]) for i, leaf in enumerate(mixed_outputs)), strict=True)
        slopes = _slopes(networks[0], mixed_outputs, structure, joined_targets)
        slopes_by_part = zip(*(slope.split([n[i] for n in sizes]) for i, slope in enumerate(slopes)), strict=True)
        ratios.append(
            [
                _ratio(_vector(of_part), _vector(_slopes(network, leaves, structure, y)))
                for network, leaves, of_part, y in zip(networks, outputs_by_part, slopes_by_part, targets, strict=True)
            ]
        )
    if not all(math.isclose(a, b, rel_tol=_TOLERANCE) for a, b in zip(*ratios, strict=True)):
        raise ValueError(_NO_SUM_MESSAGE)
    return ratios[0]


_NO_SUM_MESSAGE = (
    "The loss is neither a mean nor a sum over samples, nor another sum of its parts' losses with constant weights, so "
    "batches cannot be put together. Hand in the whole as one batch, or take the mean over batches (over='batches')."
)


def _joined(*parts: Any) -> Any:
    return torch.cat(parts) if isinstance(parts[0], Tensor) and parts[0].ndim else parts[0]


def _mixed(outputs: Tensor, share: float) -> Tensor:
    """Each row mixed with a share of its neighbour; mixtures stay inside a convex domain."""
    return outputs.lerp(outputs.roll(1, 0), share) if outputs.is_floating_point() else outputs


def _slopes(network: Network, leaves: Sequence[Tensor], form: Any, targets: Any) -> list[Tensor]:
    differentiable_outputs = [leaf.detach().clone().requires_grad_(leaf.is_floating_point()) for leaf in leaves]
    loss = network.loss(tree_unflatten(differentiable_outputs, form), targets)
    floating_outputs = [leaf for leaf in differentiable_outputs if leaf.requires_grad]
    gradients = iter(torch.autograd.grad(loss, floating_outputs, allow_unused=True))
    slopes = [next(gradients) if leaf.requires_grad else None for leaf in differentiable_outputs]
    return [torch.zeros_like(leaf) if s is None else s for s, leaf in zip(slopes, differentiable_outputs, strict=True)]


def _vector(slopes: Sequence[Tensor]) -> Tensor:
    return torch.cat([slope.reshape(-1).double() for slope in slopes])


def _ratio(whole: Tensor, part: Tensor) -> float:
    square = part @ part
    if not square > 0:
        raise ValueError(
            "A part's loss does not change with its outputs, so its share in the loss of all data cannot be read off "
            "it. Hand in the whole as one batch, or larger parts."
        )
    weight = whole @ part / square
    if not (whole - weight * part).norm() <= _TOLERANCE * whole.norm():
        raise ValueError(_NO_SUM_MESSAGE)
    return float(weight)
