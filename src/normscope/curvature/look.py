r"""The ends of the spectrum of one network, by statistics, matrix and parameters: where operators meet the solver.

The start vector is the gradient, which lies to a large part in the top eigenvectors, with a random vector of the same
length, which misses none; or the vectors of an earlier look with a part of it (`WARM`). With a preconditioner P the
operator is P^-1/2 (A + wd) P^-1/2. Several processes average gradients and products, as DDP averages gradients; all of
them then take the same steps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normscope.curvature.block import block_lanczos
from normscope.curvature.fisher import LOG_LABELS, distribution
from normscope.curvature.lanczos import Product, Ritz, lanczos
from normscope.curvature.limits import Limit
from normscope.curvature.network import Network, call_model, flat
from normscope.curvature.several import Several, reduction_of, weights
from normscope.curvature.statistics import reading
from normscope.observe.calls import Trace
from normscope.observe.processes import Processes
from normscope.observe.untouched import Lent

# Enough for an eigenvector that has overtaken the last one to show; from 0.03 on the warm start costs more products
# (measured from one training step to the next).
WARM = 0.01
LEAST, LEAST_WARM = 8, 3


@dataclass(frozen=True)
class Solver:
    """tol: relative residual to reach; most: products at most; block: start vectors; seed: of the random part."""

    tol: float = 1e-3
    most: int = 100
    block: int = 1
    seed: int = 0


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
    ) -> None:
        self._lent, self._model, self._loss_fn, self._batches, self._call = lent, model, loss_fn, batches, call
        self._limit, self._solver, self._over, self._draws = limit, solver, over, draws
        self._processes = processes or Processes()
        self.forward_mode = True
        self.drew = False

    def _networks(self, stats: str, chosen: Sequence[int] | None = None) -> list[Network]:
        settings: dict[str, Any] = {"stats": stats, "chosen": chosen, "call": self._call, "draws": self._draws}
        return [
            Network(self._lent, self._model, self._loss_fn, batch, seed=self._solver.seed + i, **settings)
            for i, batch in enumerate(self._batches)
        ]

    def network(self, stats: str, chosen: Sequence[int] | None = None) -> Network | Several:
        networks = self._networks(stats, chosen)
        if len(networks) == 1:
            return networks[0]
        shares = weights(self._batches, self._over, stats, self._model, lambda: reduction_of(networks[0]))
        return Several(networks, shares)

    def first(self, stats: str, chosen: Sequence[int]) -> tuple[float, Tensor, list[str]]:
        """The loss and its gradient, as the curvature's mean or sum over the batches; names of parameters without any.

        Raises where one of them is not finite.
        """
        networks = self._networks(stats, chosen)
        shares = weights(self._batches, self._over, stats, self._model, lambda: reduction_of(networks[0]))
        names = [self._lent.names[i] for i in chosen]
        total, slope, unused = torch.zeros(()), torch.zeros(()), set(names)
        for network, share, batch in zip(networks, shares, self._batches, strict=True):
            loss, found = network.value_and_gradients()
            self.drew = self.drew or self._lent.draws
            if not loss.isfinite():
                where = self._first_bad(batch, stats)
                raise ValueError(f"The loss is {float(loss)} here, so it has no curvature. {where}")
            for name, gradient in zip(names, found, strict=True):
                if gradient is not None and not gradient.isfinite().all():
                    raise ValueError(
                        f"The loss is finite here, but its gradient is not finite at {name}: no curvature."
                    )
            unused -= {name for name, g in zip(names, found, strict=True) if g is not None}
            total, slope = (
                total + share * loss.detach().cpu(),
                slope.to(loss.device) + share * flat(found, network.leaves),
            )
        mean = self._processes.mean(lambda: [total, slope])
        return float(mean[0]), mean[1], [name for name in names if name in unused]

    def _first_bad(self, batch: tuple[Any, Any], stats: str) -> str:
        seen: list[str] = []

        def watch(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            bad = any(isinstance(t, Tensor) and not t.isfinite().all() for t in tree_leaves(output))
            if bad and not seen:
                seen.append(f"{name} ({type(module).__name__})")

        self._lent.reset()
        with torch.no_grad(), reading(self._model, stats), Trace((watch,)).following(self._model):
            self._call(self._model, batch[0])
        return f"It first became so in the output of {seen[0]}." if seen else "The outputs are finite; the loss is not."

    def top(
        self,
        stats: str,
        matrix: str,
        chosen: Sequence[int] | None = None,
        *,
        smallest: bool = False,
        warm: Tensor | None = None,
        gradient: Tensor | None = None,
    ) -> tuple[Ritz, float]:
        """The largest eigenvalue (and the smallest, if asked), and the standard error of a sampled matrix.

        Args:
            warm: (b, n), vectors to start from. gradient: where it is known already.
        """
        # The solver's products of vectors too would be rounded to half precision inside a region of the user's.
        with torch.autocast(self._lent.leaves[0].device.type, enabled=False):
            return self._top(stats, matrix, chosen, smallest, warm, gradient)

    def _top(
        self,
        stats: str,
        matrix: str,
        chosen: Sequence[int] | None,
        smallest: bool,
        warm: Tensor | None,
        gradient: Tensor | None,
    ) -> tuple[Ritz, float]:
        network = self.network(stats, chosen)
        half = self._half(chosen, network.leaves)
        if gradient is None:
            gradient = self._processes.mean(lambda: [network.gradient()])[0]
        product = self._wrapped(network.product(matrix), half)
        start = self._start(gradient, warm)
        solver = self._solver
        least = LEAST if warm is None else LEAST_WARM
        options: dict[str, Any] = {"smallest": smallest, "tol": solver.tol, "most": solver.most, "least": least}
        alone = len(start) == 1
        found = lanczos(product, start[0], mix=0.0, **options) if alone else block_lanczos(product, start, **options)
        self.forward_mode = self.forward_mode and network.forward_mode
        top = found.vectors[0]
        error = network.fisher_error(top if half is None else half * top) if matrix == "fisher" else 0.0
        return found, error

    def refuse_linear(self, found: Ritz, matrix: str) -> None:
        """Raises where a zero is that of a loss without second derivative by the outputs; other zeros are true."""
        if matrix != "hessian" and not found.values[0] and distribution(self._loss_fn) in (None, LOG_LABELS):
            raise ValueError(
                "The loss is linear in the outputs, so its Gauss-Newton matrix is zero. For log-probabilities and "
                "nll_loss ask for matrix='fisher', or hand in logits and cross_entropy; else matrix='hessian'."
            )

    def _half(self, chosen: Sequence[int] | None, leaves: Sequence[Tensor]) -> Tensor | None:
        """P^-1/2 as a vector."""
        diagonal = self._limit.preconditioner
        if diagonal is None:
            return None
        picked = diagonal if chosen is None else [diagonal[i] for i in chosen]
        return torch.cat([p.reshape(-1) for p in picked]).to(leaves[0]).rsqrt()

    def _wrapped(self, product: Product, half: Tensor | None) -> Product:
        def averaged(v: Tensor) -> Tensor:
            return self._processes.mean(lambda: [product(v)])[0]

        ridge = self._limit.ridge
        return averaged if half is None else lambda v: half * (averaged(half * v) + ridge * half * v)

    def _start(self, gradient: Tensor, warm: Tensor | None) -> Tensor:
        # Drawn where it is used: for a large network on a GPU the host would take longer than some products.
        generator = torch.Generator(gradient.device).manual_seed(self._solver.seed)
        rows = gradient.new_empty(self._solver.block, gradient.numel()).normal_(generator=generator)
        rows = rows / rows.norm(dim=1, keepdim=True)
        size = gradient.norm()
        if size > 0 and math.isfinite(float(size)):
            rows[0] = rows[0] + gradient / size * (1.0 if rows[0] @ gradient >= 0 else -1.0)
        if warm is None:
            return rows
        last = warm.to(gradient)
        together = last[: len(rows)]
        rows[: len(together)] = together + WARM * rows[: len(together)]
        return rows


def chosen_parameters(lent: Lent, wanted: Callable[[str, nn.Parameter], bool] | None) -> list[int]:
    """Numbers of the parameters to take curvature by."""
    named = zip(lent.names, lent.originals, strict=True)
    chosen = [i for i, (name, p) in enumerate(named) if wanted is None or wanted(name, p)]
    if not chosen:
        left = "parameters= chose none of them" if lent.names else "none of the model's requires a gradient"
        raise ValueError(f"There is no parameter to take curvature by: {left}.")
    return chosen


def blocks(lent: Lent, model: nn.Module, chosen: Sequence[int]) -> dict[str, list[int]]:
    """For each module that owns chosen parameters, their numbers."""
    index = {id(lent.leaves[i]): i for i in chosen}
    found = {
        name: [index[id(p)] for p in module.parameters(recurse=False) if id(p) in index]
        for name, module in model.named_modules()
    }
    return {name: block for name, block in found.items() if block}
