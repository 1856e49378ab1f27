r"""A session: one lent network on its batches, with its loss, the ends of its spectra, and single products.

`opening.open_session` lends the model, casts its tensors and the batches, and chooses the parameters. Each method of
the `Session` takes the reading of the normalizers' statistics. A session's fields never change, and each method's
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
from torch.utils._pytree import tree_leaves

from normscope.curvature.eigensolvers.heap_trimming import untrimmed_heap
from normscope.curvature.eigensolvers.lanczos import Memory, Product, Ritz
from normscope.curvature.eigensolvers.solver import Solver
from normscope.curvature.operators.loss_of_outputs import own_loss_of
from normscope.curvature.operators.network_products import Network
from normscope.curvature.operators.several_batches import Several, check_parts, refuse_linear, refuse_mixing, shares
from normscope.curvature.operators.statistics import enough_values, reading
from normscope.isolation.batch_copies import Copies
from normscope.isolation.flat_vectors import flat
from normscope.isolation.lending import Lent
from normscope.isolation.module_calls import Trace
from normscope.isolation.processes import Processes
from normscope.loss_kinds import FLAT, LossKind, kind_by_name, kind_of
from normscope.loss_kinds.computed_by_model import kind_inside
from normscope.objective import call_model, main_output
from normscope.stability.optimizer_limits import Limit, momentum_limit, preconditioned


@dataclass
class Observations:
    """Facts that the passes of a session have shown so far.

    draws: whether forwards draw random numbers. mixing: readings of the statistics in which outputs depend on other
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
class FirstPass:
    """The loss and its gradient, as the curvature's mean or sum over the batches.

    unused: names of parameters without any gradient. network: the network of one batch with its graph kept for a search
    by the same matrix; None where no graph is kept.
    """

    loss: float
    gradient: Tensor
    unused: list[str]
    network: Network | None


@dataclass(frozen=True)
class Session:
    """One network on its batches, lent, with the parameters to take curvature by.

    chosen: numbers of these parameters among the lent ones; a method's `block` is a part of them, all by default.
    call: call(model, x) gives the outputs. dtype: that in which the model is lent, None for its own. over: how several
    batches are put together ("batches" or "data"). draws: labels drawn for a sampled Fisher matrix, 0 for the exact.
    seed: of the start vector and of these labels.
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
    observed: Observations = field(default_factory=Observations)

    def on(self, batches: Sequence[tuple[Any, Any]], **changed: Any) -> Self:
        """The session of the same lent network on other batches, whose passes are observed apart."""
        return replace(self, batches=batches, observed=Observations(), **changed)

    def network(self, stats: str, block: Sequence[int] | None = None) -> Network | Several:
        """The network on its batches, with the products of its operators."""
        weights = self._weights(stats, block)
        networks = self._networks(stats, block)
        return networks[0] if len(networks) == 1 else Several(networks, weights)

    def loss_and_gradient(self, stats: str, matrix: str = "") -> FirstPass:
        """The first pass, which also looks whether outputs depend on other samples where none should.

        Raises where the loss or its gradient is not finite.

        Args:
            matrix: of the search that goes on with the network of this pass; the graph of one batch is kept for it.
        """
        names = [self.lent.names[i] for i in self.chosen]
        unused = set(names)
        kept: list[Network] = []

        def local() -> list[Tensor]:
            total, slope = torch.zeros(()), torch.zeros(())
            weights, networks = self._weights(stats), self._networks(stats)
            alone = len(networks) == 1
            for network, weight, batch in zip(networks, weights, self.batches, strict=True):
                loss, gradients = self._value_and_gradients(network, stats, matrix if alone else "")
                self._refuse_not_finite(loss, gradients, names, batch, stats)
                unused.difference_update(name for name, g in zip(names, gradients, strict=True) if g is not None)
                total = total + weight * loss.detach().cpu()
                slope = slope.to(loss.device) + weight * flat(gradients, network.leaves)
            if alone and matrix:
                kept.append(networks[0])
            return [total, slope]

        total, slope = self.processes.mean(local)
        in_order = [name for name in names if name in unused]
        return FirstPass(float(total), slope, in_order, kept[0] if kept else None)

    def loss_kind(self, stats: str) -> LossKind:
        """The kind of the loss, by what it computes on the first batch that it reads anything of."""
        if named := kind_by_name(self.loss_fn):
            return LossKind(named)

        def local() -> LossKind:
            kind = FLAT
            for network in self._networks(stats):
                if self.loss_fn is own_loss_of:
                    outputs = network.output()
                    return kind_inside(network.loss(outputs), main_output(outputs))
                with torch.no_grad():
                    outputs = network.output()
                kind = kind_of(network.loss, outputs, None)
                if kind != FLAT:
                    break
            return kind

        return self.processes.each(local)

    def loss_function(self, stats: str) -> Callable[[], float]:
        """A function that gives the loss at the values that the lent parameters have when it is called."""
        weights, networks = self._weights(stats), self._networks(stats)

        def local() -> list[Tensor]:
            weighted = zip(weights, networks, strict=True)
            return [torch.stack([weight * network.value().double().cpu() for weight, network in weighted]).sum()]

        return lambda: float(self.processes.mean(local)[0])

    def observe_mixing(self, stats: str) -> None:
        """Look in one pass whether outputs depend on other samples in this reading of the statistics."""
        self.processes.each(lambda: self._observe_mixing(self._networks(stats)[0], stats))

    def search(
        self,
        stats: str,
        matrix: str,
        block: Sequence[int] | None = None,
        *,
        smallest: bool = False,
        memory: Memory | None = None,
        gradient: Tensor | None = None,
        network: Network | None = None,
        keep: int = 1,
    ) -> tuple[Ritz, float]:
        """The largest eigenvalue (and the smallest, if asked), and the standard error of a sampled matrix.

        Args:
            memory: Ritz pairs of an earlier search, to start from. keep: pairs to remember.
            gradient: the loss's, where it is known already. network: of the first pass, whose graph is taken up.
        """
        with self._plain_products(block):
            searched = self.processes.each(lambda: self.network(stats, block) if network is None else network)
            if gradient is None:
                with enough_values():
                    gradient = self.processes.mean(lambda: [searched.gradient(matrix)])[0]
            product, half = self._operator(searched, matrix, block)
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

    def product(self, stats: str, matrix: str, v: Tensor, *, network: Network | None = None) -> Tensor:
        """One product with the operator whose ends `search` finds; network: of the first pass."""
        with self._plain_products():
            multiplied = self.processes.each(lambda: self.network(stats) if network is None else network)
            return self._operator(multiplied, matrix, None)[0](v)

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

    def _networks(self, stats: str, block: Sequence[int] | None = None) -> list[Network]:
        settings: dict[str, Any] = {"stats": stats, "call": self.call, "draws": self.draws, "dtype": self.dtype}
        settings["chosen"] = self.chosen if block is None else block
        return [
            Network(self.lent, self.model, self.loss_fn, batch, seed=self.seed + i, **settings)
            for i, batch in enumerate(self.batches)
        ]

    def _weights(self, stats: str, block: Sequence[int] | None = None) -> list[float]:
        """The weight of each batch's operator; refused where these operators do not add up to what is asked for."""
        n, observed = len(self.batches), self.observed
        if not check_parts(self.model, self.over, stats, n):
            return [1 / n] * n
        # Statistics held constant hide what depends on them, so "frozen" is looked at as "batch".
        differentiable = "running" if stats == "running" else "batch"
        if differentiable not in observed.separate:
            refuse_mixing(self._networks(differentiable, block)[0])
            observed.separate.add(differentiable)
        if observed.weights is None:
            observed.weights = shares(self._networks(stats, block))
        return observed.weights

    def _value_and_gradients(self, network: Network, stats: str, matrix: str) -> tuple[Tensor, list[Tensor | None]]:
        with enough_values():
            loss, gradients = network.value_and_gradients(matrix=matrix)
        self.observed.draws = self.observed.draws or self.lent.draws
        self._observe_mixing(network, stats)
        return loss, gradients

    def _observe_mixing(self, network: Network, stats: str) -> None:
        if stats == "batch":
            return
        with enough_values():
            if network.mixes():
                self.observed.mixing.add(stats)

    def _refuse_not_finite(
        self, loss: Tensor, gradients: list[Tensor | None], names: Sequence[str], batch: tuple[Any, Any], stats: str
    ) -> None:
        if not loss.isfinite():
            # A pass of one process alone would wait for the others where it exchanges statistics.
            where = self._first_not_finite(batch, stats) if self.processes.size == 1 else "Look at its batch."
            raise ValueError(f"The loss is {float(loss)} here, so it has no curvature. {where}")
        for name, gradient in zip(names, gradients, strict=True):
            if gradient is not None and not gradient.isfinite().all():
                raise ValueError(f"The loss is finite here, but its gradient is not finite at {name}: no curvature.")

    def _first_not_finite(self, batch: tuple[Any, Any], stats: str) -> str:
        """A sentence that names the first layer with an output that is not finite."""
        layers: list[str] = []

        def watch(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            bad = any(isinstance(t, Tensor) and not t.isfinite().all() for t in tree_leaves(output))
            if bad and not layers:
                layers.append(f"{name} ({type(module).__name__})")

        if any(isinstance(t, Tensor) and not t.isfinite().all() for t in tree_leaves(batch)):
            return "The batch itself is not finite: look at x and y."
        self.lent.reset()
        with torch.no_grad(), reading(self.model, stats), Trace((watch,)).following(self.model):
            self.call(self.model, Copies(batch[0]).take())
        if not layers:
            return "The outputs are finite; the loss is not."
        return f"It first became so in the output of {layers[0]}."

    def _operator(
        self, network: Network | Several, matrix: str, block: Sequence[int] | None
    ) -> tuple[Product, Tensor | None]:
        """The operator, preconditioned and averaged over processes, and the vector of P^-1/2."""
        local = self.processes.each(lambda: network.product(matrix))

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
