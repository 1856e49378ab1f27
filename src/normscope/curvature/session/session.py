r"""A session: one lent network on its batches, with its loss, the ends of its spectra, and single products.

`opening.open_session` lends the model, casts its tensors and the batches, and chooses the parameters. The methods of
the `Session` take the statistics mode (`operators/statistics.py`). A session's fields never change, and each method's
answer follows from its arguments and these fields. Two objects gather what passes show: `Observations` holds facts for
the notes, and `CachedWeights` holds weights that would else be computed again.

With a preconditioner P the operator is P^-1/2 (A + R) P^-1/2 + D (`stability/optimizer_limits.py`). Several processes
average gradients and products, as DDP averages gradients; all of them then take the same steps.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from normscope.curvature.autograd.precision import rounded
from normscope.curvature.eigensolvers.heap_trimming import untrimmed_heap
from normscope.curvature.eigensolvers.lanczos import Memory, Ritz
from normscope.curvature.operators.matrices import MATRICES
from normscope.curvature.operators.network_products import FirstGraph, MatrixProduct, Network
from normscope.curvature.operators.several_batches import (
    NetworksOnBatches,
    ProductsOnBatches,
    check_parts,
    refuse_linear,
)
from normscope.curvature.operators.statistics import enough_values
from normscope.curvature.session.cached_weights import CachedWeights
from normscope.curvature.session.observations import Observations
from normscope.curvature.session.options import Options
from normscope.isolation.lending import Lent
from normscope.isolation.processes import Processes
from normscope.linear_maps import Product
from normscope.stability.optimizer_limits import Preconditioned, preconditioned


@dataclass(frozen=True)
class Session:
    """One network on its batches, lent, with the parameters that curvature is taken with respect to.

    Attributes:
        lent: the copies that the model works with.
        model: the model that they are lent to.
        loss_fn: loss_fn(outputs, targets).
        batches: pairs of inputs and targets.
        chosen: numbers of the chosen parameters among the lent ones. A method's `block` is a part of them, all by
            default.
        dtype: that in which the model is lent, None for its own.
        options: settings that the session was opened with.
        observed: facts that passes have shown, for the notes.
        cached_weights: weights of these batches, once they are computed.
    """

    lent: Lent
    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    batches: Sequence[tuple[Any, Any]]
    chosen: Sequence[int]
    dtype: torch.dtype | None = None
    options: Options = field(default_factory=Options)
    observed: Observations = field(default_factory=Observations)
    cached_weights: CachedWeights = field(default_factory=CachedWeights)

    @property
    def processes(self) -> Processes:
        return self.options.processes

    def with_batches(self, batches: Sequence[tuple[Any, Any]], **changed: Any) -> Self:
        """The session of the same lent network on other batches, whose passes are observed apart.

        Args:
            batches: pairs of inputs and targets.
            changed: fields of `Options` that are others for these batches.
        """
        return replace(
            self,
            batches=batches,
            options=replace(self.options, **changed),
            observed=Observations(),
            cached_weights=CachedWeights(),
        )

    def network(self, stats: str, block: Sequence[int] | None = None) -> Network | NetworksOnBatches:
        """The network on its batches, with the products of its operators."""
        weights, networks = self.weights(stats, block), self.networks(stats, block)
        return networks[0] if len(networks) == 1 else NetworksOnBatches(networks, weights)

    def search(
        self,
        stats: str,
        matrix: str,
        block: Sequence[int] | None = None,
        *,
        smallest: bool = False,
        memory: Memory | None = None,
        gradient: Tensor | None = None,
        graph: FirstGraph | None = None,
        keep: int = 1,
    ) -> tuple[Ritz, float]:
        """The largest eigenvalue (and the smallest, if asked), and the standard error of a sampled matrix.

        Args:
            block: numbers of the parameters, all chosen ones by default.
            smallest: whether the smallest eigenvalue is asked for too.
            memory: Ritz pairs of an earlier search, to start from.
            gradient: the gradient of the loss, where it is known already.
            graph: the graph of the pass that gave this gradient.
            keep: Ritz pairs to remember for a later search.
        """
        with self._plain_products(block):
            searched = self.processes.each(lambda: self.network(stats, block) if graph is None else graph.network)
            if gradient is None:
                with enough_values():
                    own_gradient, graph = self.processes.each(lambda: searched.gradient_and_graph(matrix))
                gradient = self.processes.mean(lambda: [own_gradient])[0]
            local = self.processes.each(lambda: searched.product(matrix, graph))
            product, inverse_root = self._operator(local, searched, block)
            # Of several processes, one whose GPU rounds would make other products than one whose GPU does not.
            rounded_product = _rounded(product) if self.processes.size == 1 else None
            ritz = self.options.solver.search(
                product,
                gradient,
                smallest=smallest,
                memory=memory,
                keep=keep,
                seed=self.options.seed,
                rounded_product=rounded_product,
            )
            self.observed.forward_mode = self.observed.forward_mode and searched.forward_mode
            self.observed.penalty = self.observed.penalty or local.reads_parameters
            if not MATRICES[matrix].draws_labels:
                return ritz, 0.0
            top = ritz.vectors[0]
            error = torch.tensor(
                searched.fisher_error(top if inverse_root is None else inverse_root * top), dtype=torch.float64
            )
            variance = self.processes.mean(lambda: [error.square()])[0] / self.processes.size
            return ritz, float(variance.sqrt())

    def product(self, stats: str, matrix: str, v: Tensor, *, graph: FirstGraph | None = None) -> Tensor:
        """One product with the operator whose ends `search` finds; graph: the graph of the first pass."""
        with self._plain_products():
            network = self.processes.each(lambda: self.network(stats) if graph is None else graph.network)
            local = self.processes.each(lambda: network.product(matrix, graph))
            return self._operator(local, network, None).product(v)

    def quadratic_form(
        self, stats: str, matrix: str, v: Tensor, block: Sequence[int] | None = None
    ) -> tuple[float, Callable[[], Tensor]]:
        """v^T A v of the operator A whose ends `search` finds, and a call that completes A v."""
        completions: list[Callable[[], Tensor]] = []

        def multiple_of(w: Tensor) -> Tensor:
            """A multiple of w, with the same form at w as the operator."""

            def form() -> list[Tensor]:
                value, complete = network.quadratic_form(matrix, w)
                completions.append(complete)
                return [value]

            return self.processes.mean(form)[0] / (w @ w) * w

        def completed_product() -> Tensor:
            def completed(_: Tensor) -> Tensor:
                return self.processes.mean(lambda: [completions[0]()])[0]

            with self._plain_products(block):
                return self._preconditioned(completed, network, block).product(v)

        with self._plain_products(block):
            network = self.processes.each(lambda: self.network(stats, block))
            return float(v @ self._preconditioned(multiple_of, network, block).product(v)), completed_product

    @contextmanager
    def _plain_products(self, block: Sequence[int] | None = None) -> Iterator[None]:
        """Inside, autocast is off, freed memory is kept, and graphs hold the parameters of `block` alone.

        Inside an autocast region of the user's, the solver's products of vectors would be rounded to half precision.
        """
        device = self.lent.leaves[0].device
        numbers = self.chosen if block is None else block
        with torch.autocast(device.type, enabled=False), untrimmed_heap(device), requiring_grad(self.lent, numbers):
            yield

    def networks(self, stats: str, block: Sequence[int] | None = None) -> list[Network]:
        """The network on each of the batches."""
        return [
            Network(
                self.lent,
                self.model,
                self.loss_fn,
                batch,
                stats=stats,
                chosen=self.chosen if block is None else block,
                call=self.options.call,
                label_draws=self.options.label_draws,
                seed=self.options.seed + i,
                dtype=self.dtype,
            )
            for i, batch in enumerate(self.batches)
        ]

    def weights(self, stats: str, block: Sequence[int] | None = None) -> list[float]:
        """The weight of each batch's operator; refused where these operators do not add up to what is asked for."""
        n = len(self.batches)
        if not check_parts(self.model, self.options.over, stats, n):
            return [1 / n] * n
        return self.cached_weights.find(stats, lambda mode: self.networks(mode, block))

    def _operator(
        self,
        local: MatrixProduct | ProductsOnBatches,
        network: Network | NetworksOnBatches,
        block: Sequence[int] | None,
    ) -> Preconditioned:
        """This process's `local` product, averaged over processes and preconditioned."""

        def averaged(v: Tensor) -> Tensor:
            image = self.processes.mean(lambda: [local(v)])[0]
            refuse_linear(local)
            return image

        return self._preconditioned(averaged, network, block)

    def _preconditioned(
        self, product: Product, network: Network | NetworksOnBatches, block: Sequence[int] | None
    ) -> Preconditioned:
        return preconditioned(product, self.options.limit, self.chosen if block is None else block, network.leaves)


def _rounded(product: Product) -> Product:
    """The product rounded to TF32, on a GPU."""

    def rounded_product(v: Tensor) -> Tensor:
        with rounded():
            return product(v)

    return rounded_product


@contextmanager
def requiring_grad(lent: Lent, numbers: Sequence[int]) -> Iterator[None]:
    """Inside, the lent parameters of these numbers alone require gradients, so graphs hold no others."""
    before = [leaf.requires_grad for leaf in lent.leaves]
    wanted = set(numbers)
    try:
        for i, leaf in enumerate(lent.leaves):
            leaf.requires_grad_(i in wanted)
        yield
    finally:
        for leaf, required in zip(lent.leaves, before, strict=True):
            leaf.requires_grad_(required)
