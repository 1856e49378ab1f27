r"""The ends of the spectrum of one network, by statistics, matrix and parameters: where operators meet the solver.

With a preconditioner P the operator is P^-1/2 (A + R) P^-1/2 + D (`limits.py`). Several processes average
gradients and products, as DDP averages gradients; all of them then take the same steps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normscope.curvature.eigensolvers.block_lanczos import block_lanczos
from normscope.curvature.eigensolvers.davidson import LEAST, LEAST_WARM, lanczos_from
from normscope.curvature.eigensolvers.lanczos import Memory, Product, Ritz, lanczos
from normscope.curvature.eigensolvers.start_vectors import fresh_start, warm_start
from normscope.curvature.eigensolvers.tf32_refinement import rehearsable, rehearsed
from normscope.curvature.heap_trimming import room
from normscope.curvature.operators.batch_weights import check_parts, refuse_mixing, shares
from normscope.curvature.operators.loss_of_outputs import own_loss_of
from normscope.curvature.operators.network_products import Network
from normscope.curvature.operators.several_batches import Several, refuse_linear
from normscope.curvature.operators.statistics import enough_values, reading
from normscope.isolation.batch_copies import Copies
from normscope.isolation.flat_vectors import flat
from normscope.isolation.lending import Lent
from normscope.isolation.module_calls import Trace
from normscope.isolation.processes import Processes
from normscope.loss_kinds import FLAT, Kind, kind_by_name, kind_of
from normscope.loss_kinds.computed_by_model import kind_inside
from normscope.objective import call_model, main_output
from normscope.stability.optimizer_limits import Limit, preconditioned


@dataclass(frozen=True)
class Solver:
    """tol: relative residual to reach; most: products at most; block: start vectors; seed: of the random part."""

    tol: float = 1e-3
    most: int = 100
    block: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, count in (("most", self.most), ("block", self.block)):
            if not isinstance(count, int) or count < 1:
                raise ValueError(f"{name}= counts {_COUNTED[name]}, at least 1; got {count!r}.")
        if not (math.isfinite(self.tol) and self.tol > 0):
            raise ValueError(f"tol= is a relative residual, more than 0; got {self.tol!r}. The default is 1e-3.")


_COUNTED = {"most": "products", "block": "start vectors"}


class Look:
    """One network on its batches, lent; `call(model, x)` gives the outputs."""

    def __init__(
        self,
        lent: Lent,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor],
        batches: Sequence[tuple[Any, Any]],
        *,
        limit: Limit,
        solver: Solver,
        processes: Processes | None = None,
        over: str = "batches",
        draws: int = 0,
        call: Callable[[nn.Module, Any], Any] = call_model,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._lent, self._model, self._loss_fn, self._batches, self._call = lent, model, loss_fn, batches, call
        self._limit, self._solver, self._over, self._draws, self._dtype = limit, solver, over, draws, dtype
        self._processes = processes or Processes()
        self._shares: list[float] | None = None
        self._separate: set[str] = set()
        self._begun: Network | None = None
        self.forward_mode, self.drew, self.direct = True, False, False
        self.mixing: set[str] = set()

    def _networks(self, stats: str, chosen: Sequence[int] | None = None) -> list[Network]:
        settings: dict[str, Any] = {"stats": stats, "chosen": chosen, "call": self._call, "draws": self._draws}
        settings["dtype"] = self._dtype
        return [
            Network(self._lent, self._model, self._loss_fn, batch, seed=self._solver.seed + i, **settings)
            for i, batch in enumerate(self._batches)
        ]

    def network(self, stats: str, chosen: Sequence[int] | None = None) -> Network | Several:
        """That which `first` has begun, once; a new one else."""
        begun, self._begun = self._begun, None
        if begun is not None:
            return begun
        weights = self._weights(stats, chosen)
        networks = self._networks(stats, chosen)
        return networks[0] if len(networks) == 1 else Several(networks, weights)

    def _weights(self, stats: str, chosen: Sequence[int] | None) -> list[float]:
        """Of each batch's operator; refused where the parts' operators do not add up to what is asked for."""
        n = len(self._batches)
        if not check_parts(self._model, self._over, stats, n):
            return [1 / n] * n
        # Statistics held constant hide what depends on them.
        seen = "running" if stats == "running" else "batch"
        if seen not in self._separate:
            refuse_mixing(self._networks(seen, chosen)[0])
            self._separate.add(seen)
        if self._shares is None:
            self._shares = shares(self._networks(stats, chosen))
        return self._shares

    def first(self, stats: str, chosen: Sequence[int], matrix: str = "") -> tuple[float, Tensor, list[str]]:
        """The loss and its gradient, as the curvature's mean or sum over the batches; names of parameters without any.

        matrix: of the `top` that follows with the same arguments; the graph of one batch is kept for it.
        Raises where one of them is not finite. Looks whether outputs depend on other samples where none should.
        """
        names = [self._lent.names[i] for i in chosen]
        unused = set(names)

        def local() -> list[Tensor]:
            total, slope = torch.zeros(()), torch.zeros(())
            weights, networks = self._weights(stats, chosen), self._networks(stats, chosen)
            alone = len(networks) == 1
            for network, share, batch in zip(networks, weights, self._batches, strict=True):
                loss, found = self._value(network, stats, matrix if alone else "")
                if not loss.isfinite():
                    # A pass of one process alone would wait for the others where it exchanges statistics.
                    where = self._first_bad(batch, stats) if self._processes.size == 1 else "Look at its batch."
                    raise ValueError(f"The loss is {float(loss)} here, so it has no curvature. {where}")
                for name, gradient in zip(names, found, strict=True):
                    if gradient is not None and not gradient.isfinite().all():
                        raise ValueError(
                            f"The loss is finite here, but its gradient is not finite at {name}: no curvature."
                        )
                unused.difference_update(name for name, g in zip(names, found, strict=True) if g is not None)
                total = total + share * loss.detach().cpu()
                slope = slope.to(loss.device) + share * flat(found, network.leaves)
            self._begun = networks[0] if alone and matrix else None
            return [total, slope]

        total, slope = self._processes.mean(local)
        return float(total), slope, [name for name in names if name in unused]

    def kind(self, stats: str, chosen: Sequence[int]) -> Kind:
        """The kind of the loss, by what it computes on the first batch that it reads anything of."""
        if named := kind_by_name(self._loss_fn):
            return Kind(named)

        def local() -> Kind:
            found = FLAT
            for network in self._networks(stats, chosen):
                if self._loss_fn is own_loss_of:
                    outputs = network.output()
                    return kind_inside(network.loss(outputs), main_output(outputs))
                with torch.no_grad():
                    outputs = network.output()
                found = kind_of(network.loss, outputs, None)
                if found != FLAT:
                    break
            return found

        return self._processes.each(local)

    def losses(self, stats: str, chosen: Sequence[int]) -> Callable[[], float]:
        """The loss of `first` wherever the leaves stand by then."""
        weights, networks = self._weights(stats, chosen), self._networks(stats, chosen)

        def local() -> list[Tensor]:
            shares = zip(weights, networks, strict=True)
            return [torch.stack([share * network.value().double().cpu() for share, network in shares]).sum()]

        return lambda: float(self._processes.mean(local)[0])

    def _value(self, network: Network, stats: str, matrix: str) -> tuple[Tensor, list[Tensor | None]]:
        with enough_values():
            found = network.value_and_gradients(matrix=matrix)
        self.drew = self.drew or self._lent.draws
        self._look_for_mixing(network, stats)
        return found

    def _look_for_mixing(self, network: Network, stats: str) -> None:
        if stats == "batch":
            return
        with enough_values():
            if network.mixes():
                self.mixing.add(stats)

    def compared(self, stats: str, chosen: Sequence[int]) -> None:
        """A pass in another reading: whether outputs depend on other samples there."""
        self._processes.each(lambda: self._look_for_mixing(self._networks(stats, chosen)[0], stats))

    def _first_bad(self, batch: tuple[Any, Any], stats: str) -> str:
        seen: list[str] = []

        def watch(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            bad = any(isinstance(t, Tensor) and not t.isfinite().all() for t in tree_leaves(output))
            if bad and not seen:
                seen.append(f"{name} ({type(module).__name__})")

        if any(isinstance(t, Tensor) and not t.isfinite().all() for t in tree_leaves(batch)):
            return "The batch itself is not finite: look at x and y."
        self._lent.reset()
        with torch.no_grad(), reading(self._model, stats), Trace((watch,)).following(self._model):
            self._call(self._model, Copies(batch[0]).take())
        return f"It first became so in the output of {seen[0]}." if seen else "The outputs are finite; the loss is not."

    def top(
        self,
        stats: str,
        matrix: str,
        chosen: Sequence[int] | None = None,
        *,
        smallest: bool = False,
        warm: Memory | None = None,
        gradient: Tensor | None = None,
        keep: int = 1,
    ) -> tuple[Ritz, float]:
        """The largest eigenvalue (and the smallest, if asked), and the standard error of a sampled matrix.

        Args:
            warm: of an earlier look, to start from. gradient: where it is known already. keep: pairs to remember.
        """
        # The solver's products of vectors too would be rounded to half precision inside a region of the user's.
        device = self._lent.leaves[0].device
        with torch.autocast(device.type, enabled=False), room(device):
            return self._top(stats, matrix, chosen, smallest, warm, gradient, keep)

    def image(self, stats: str, matrix: str, chosen: Sequence[int] | None, v: Tensor) -> Tensor:
        """One product with the operator whose ends `top` gives."""
        with torch.autocast(v.device.type, enabled=False), room(v.device):
            network = self._processes.each(lambda: self.network(stats, chosen))
            return self._operator(network, matrix, chosen)[0](v)

    def form(
        self, stats: str, matrix: str, chosen: Sequence[int] | None, v: Tensor
    ) -> tuple[float, Callable[[], Tensor]]:
        """v^T A v of that operator A, and a call that completes A v."""
        rest: list[Callable[[], Tensor]] = []

        def alike(w: Tensor) -> Tensor:
            """A multiple of w, with the same form at w as the operator."""

            def form() -> list[Tensor]:
                value, complete = network.form(matrix, w)
                rest.append(complete)
                return [value]

            return self._processes.mean(form)[0] / (w @ w) * w

        def image() -> Tensor:
            with torch.autocast(v.device.type, enabled=False), room(v.device):

                def completed(_: Tensor) -> Tensor:
                    return self._processes.mean(lambda: [rest[0]()])[0]

                return preconditioned(completed, self._limit, chosen, network.leaves)[0](v)

        with torch.autocast(v.device.type, enabled=False), room(v.device):
            network = self._processes.each(lambda: self.network(stats, chosen))
            return float(v @ preconditioned(alike, self._limit, chosen, network.leaves)[0](v)), image

    def _operator(
        self, network: Network | Several, matrix: str, chosen: Sequence[int] | None
    ) -> tuple[Product, Tensor | None]:
        """Preconditioned and averaged over processes, and the vector of P^-1/2."""
        local = self._processes.each(lambda: network.product(matrix))

        def averaged(v: Tensor) -> Tensor:
            found = self._processes.mean(lambda: [local(v)])[0]
            refuse_linear(network)
            return found

        return preconditioned(averaged, self._limit, chosen, network.leaves)

    def _top(
        self,
        stats: str,
        matrix: str,
        chosen: Sequence[int] | None,
        smallest: bool,
        warm: Memory | None,
        gradient: Tensor | None,
        keep: int,
    ) -> tuple[Ritz, float]:
        network = self._processes.each(lambda: self.network(stats, chosen))
        if gradient is None:
            with enough_values():
                gradient = self._processes.mean(lambda: [network.gradient(matrix)])[0]
        product, half = self._operator(network, matrix, chosen)
        if not gradient.any():
            # What has overtaken the last vector would be in the random part alone, which a fresh start has more of.
            warm = None
        solver = self._solver
        fresh = fresh_start(gradient, solver.block, solver.seed)
        start = fresh if warm is None else warm_start(warm, fresh)
        options: dict[str, Any] = {"smallest": smallest, "tol": solver.tol, "most": solver.most, "keep": keep}
        options["least"] = LEAST if warm is None or len(start) > 1 else LEAST_WARM

        def search(product: Product, **options: Any) -> Ritz:
            if warm is None:
                return lanczos(product, start[0], mix=0.0, **options)
            return lanczos_from(product, warm, start[0], fresh[0], **options)

        if len(start) > 1:
            found = block_lanczos(product, start, **options)
        elif self._processes.size == 1 and rehearsable(start, solver.tol, solver.most):
            # Alone: of several processes each would have to begin afresh where one does.
            found = rehearsed(search, product, **options)
        else:
            found = search(product, **options)
        self.forward_mode = self.forward_mode and network.forward_mode
        self.direct = self.direct or network.direct
        top = found.vectors[0]
        if matrix != "fisher":
            return found, 0.0
        error = torch.tensor(network.fisher_error(top if half is None else half * top), dtype=torch.float64)
        variance = self._processes.mean(lambda: [error.square()])[0] / self._processes.size
        return found, float(variance.sqrt())
