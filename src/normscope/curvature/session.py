r"""A session: one lent network on its batches, with its loss, the ends of its spectra, and single products.

`opening.open_session` lends the model, casts its tensors and the batches, and chooses the parameters. The methods of
the `Session` take the statistics mode (`operators/statistics.py`). A session's fields never change, and each method's
answer follows from its arguments; `Observations` alone gathers facts for the notes. With a preconditioner P the
operator is P^-1/2 (A + R) P^-1/2 + D (`stability/optimizer_limits.py`). Several processes average gradients and
products, as DDP averages gradients; all of them then take the same steps.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from normscope.curvature.eigensolvers.heap_trimming import untrimmed_heap
from normscope.curvature.eigensolvers.lanczos import Memory, Product, Ritz
from normscope.curvature.eigensolvers.solver import Solver
from normscope.curvature.operators.network_products import FirstGraph, Network
from normscope.curvature.operators.several_batches import Several, check_parts, refuse_linear, refuse_mixing, shares
from normscope.curvature.operators.statistics import differentiable, enough_values
from normscope.isolation.lending import Lent
from normscope.isolation.processes import Processes
from normscope.objective import call_model
from normscope.stability.optimizer_limits import Limit, momentum_limit, preconditioned


@dataclass
class Observations:
    """Facts that the passes of a session have shown so far.

    draws: whether forwards draw random numbers. mixing: statistics modes in which outputs depend on other
    samples though no known normalizer makes them. forward_mode: whether forward mode gave every J v. penalty: whether
    the loss reads parameters itself. separate, weights: what is known of putting batches together, so that it is
    computed once.
    """

    draws: bool = False
    mixing: set[str] = field(default_factory=set)
    forward_mode: bool = True
    penalty: bool = False
    separate: set[str] = field(default_factory=set)
    weights: list[float] | None = None


@dataclass(frozen=True)
class Session:
    """One network on its batches, lent, with the parameters to take curvature by.

    chosen: numbers of these parameters among the lent ones; a method's `block` is a part of them, all by default.
    call: call(model, x) gives the outputs. dtype: that in which the model is lent, None for its own. over: how several
    batches are put together ("batches" or "data"). draws: labels drawn for a sampled Fisher matrix, 0 for the exact.
    seed: of the start vector and of these labels. max_memory: bytes that copies may take, None for no limit.
    """

    lent: Lent
    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    batches: Sequence[tuple[Any, Any]]
    chosen: Sequence[int]
    dtype: torch.dtype | None = None
    call: Callable[[nn.Module, Any], Any] = call_model
    processes: Processes = field(default_factory=Processes)
    limit: Limit = field(default_factory=momentum_limit)
    solver: Solver = field(default_factory=Solver)
    over: str = "batches"
    draws: int = 0
    seed: int = 0
    max_memory: float | None = None
    observed: Observations = field(default_factory=Observations)

    def on(self, batches: Sequence[tuple[Any, Any]], **changed: Any) -> Self:
        """The session of the same lent network on other batches, whose passes are observed apart."""
        return replace(self, batches=batches, observed=Observations(), **changed)

    def network(self, stats: str, block: Sequence[int] | None = None) -> Network | Several:
        """The network on its batches, with the products of its operators."""
        weights, networks = self.weights(stats, block), self.networks(stats, block)
        return networks[0] if len(networks) == 1 else Several(networks, weights)

    def search(
        self,
        stats: str,
        matrix: str,
        block: Sequence[int] | None = None,
        *,
        smallest: bool = False,
        memory: Memory | None = None,
        gradient: Tensor | None = None,
        first: FirstGraph | None = None,
        keep: int = 1,
    ) -> tuple[Ritz, float]:
        """The largest eigenvalue (and the smallest, if asked), and the standard error of a sampled matrix.

        Args:
            memory: Ritz pairs of an earlier search, to start from. keep: pairs to remember.
            gradient: the loss's, where it is known already. first: the graph of the pass that gave this gradient.
        """
        with self._plain_products(block):
            searched = self.processes.each(lambda: self.network(stats, block) if first is None else first.network)
            if gradient is None:
                with enough_values():
                    own_gradient, first = self.processes.each(lambda: searched.gradient_and_graph(matrix))
                gradient = self.processes.mean(lambda: [own_gradient])[0]
            product, half = self._operator(searched, matrix, block, first)
            settings: dict[str, Any] = {"keep": keep, "seed": self.seed, "alone": self.processes.size == 1}
            ritz = self.solver.search(product, gradient, smallest=smallest, memory=memory, **settings)
            self.observed.forward_mode = self.observed.forward_mode and searched.forward_mode
            self.observed.penalty = self.observed.penalty or searched.direct
            if matrix != "fisher":
                return ritz, 0.0
            top = ritz.vectors[0]
            error = torch.tensor(searched.fisher_error(top if half is None else half * top), dtype=torch.float64)
            variance = self.processes.mean(lambda: [error.square()])[0] / self.processes.size
            return ritz, float(variance.sqrt())

    def product(self, stats: str, matrix: str, v: Tensor, *, first: FirstGraph | None = None) -> Tensor:
        """One product with the operator whose ends `search` finds; first: the graph of the first pass."""
        with self._plain_products():
            network = self.processes.each(lambda: self.network(stats) if first is None else first.network)
            return self._operator(network, matrix, None, first)[0](v)

    def quadratic_form(
        self, stats: str, matrix: str, v: Tensor, block: Sequence[int] | None = None
    ) -> tuple[float, Callable[[], Tensor]]:
        """v^T A v of the operator A whose ends `search` finds, and a call that completes A v."""
        completions: list[Callable[[], Tensor]] = []

        def multiple_of(w: Tensor) -> Tensor:
            """A multiple of w, with the same form at w as the operator."""

            def form() -> list[Tensor]:
                value, complete = network.form(matrix, w)
                completions.append(complete)
                return [value]

            return self.processes.mean(form)[0] / (w @ w) * w

        def completed_product() -> Tensor:
            def completed(_: Tensor) -> Tensor:
                return self.processes.mean(lambda: [completions[0]()])[0]

            with self._plain_products(block):
                return self._preconditioned(completed, network, block)[0](v)

        with self._plain_products(block):
            network = self.processes.each(lambda: self.network(stats, block))
            return float(v @ self._preconditioned(multiple_of, network, block)[0](v)), completed_product

    @contextmanager
    def _plain_products(self, block: Sequence[int] | None = None) -> Iterator[None]:
        """Inside, autocast is off, freed memory is kept, and graphs are by the parameters of `block` alone.

        Inside an autocast region of the user's, the solver's products of vectors would be rounded to half precision.
        """
        device = self.lent.leaves[0].device
        numbers = self.chosen if block is None else block
        with torch.autocast(device.type, enabled=False), untrimmed_heap(device), differentiated(self.lent, numbers):
            yield

    def networks(self, stats: str, block: Sequence[int] | None = None) -> list[Network]:
        """The network on each of the batches."""
        settings: dict[str, Any] = {"stats": stats, "call": self.call, "draws": self.draws, "dtype": self.dtype}
        settings["chosen"] = self.chosen if block is None else block
        return [
            Network(self.lent, self.model, self.loss_fn, batch, seed=self.seed + i, **settings)
            for i, batch in enumerate(self.batches)
        ]

    def weights(self, stats: str, block: Sequence[int] | None = None) -> list[float]:
        """The weight of each batch's operator; refused where these operators do not add up to what is asked for."""
        n, observed = len(self.batches), self.observed
        if not check_parts(self.model, self.over, stats, n):
            return [1 / n] * n
        shown_in = differentiable(stats)
        if shown_in not in observed.separate:
            refuse_mixing(self.networks(shown_in, block)[0])
            observed.separate.add(shown_in)
        if observed.weights is None:
            observed.weights = shares(self.networks(stats, block))
        return observed.weights

    def _operator(
        self, network: Network | Several, matrix: str, block: Sequence[int] | None, first: FirstGraph | None
    ) -> tuple[Product, Tensor | None]:
        """The operator, preconditioned and averaged over processes, and the vector of P^-1/2."""
        local = self.processes.each(lambda: network.product(matrix, first))

        def averaged(v: Tensor) -> Tensor:
            image = self.processes.mean(lambda: [local(v)])[0]
            refuse_linear(network)
            return image

        return self._preconditioned(averaged, network, block)

    def _preconditioned(
        self, product: Product, network: Network | Several, block: Sequence[int] | None
    ) -> tuple[Product, Tensor | None]:
        return preconditioned(product, self.limit, self.chosen if block is None else block, network.leaves)


@contextmanager
def differentiated(lent: Lent, numbers: Sequence[int]) -> Iterator[None]:
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
