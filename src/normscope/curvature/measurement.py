r"""`measure`: the largest stable learning rate of this network on this batch, from the curvature as trained.

    eta* = factor / lambda_max,   factor = 2 (1 + mu) for gradient descent with momentum (`limits.py`)

lambda_max is that of the generalized Gauss-Newton matrix by default, with the Hessian's largest and smallest eigenvalue
beside it, through the batch statistics as they are trained ("batch"), with them held constant ("frozen") or in eval
mode ("running"). eta* marks where the local quadratic turns unstable; with cross-entropy that is not where training
breaks.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normscope.choices import check_choice
from normscope.curvature.lanczos import Ritz, lanczos
from normscope.curvature.limits import Limit, momentum_limit, optimizer_limit
from normscope.curvature.network import Network, flat
from normscope.curvature.statistics import STATISTICS, over_the_batch, reading
from normscope.environment import environment
from normscope.observe.calls import Trace
from normscope.observe.model import unwrapped
from normscope.observe.untouched import Lent, untouched
from normscope.observe.verdict import CROSS_ENTROPY, NOT_A_LIMIT, SQUARED, Verdict, loss_kind
from normscope.results import plain

MATRICES = ("ggn", "hessian")


@dataclass(frozen=True)
class Measurement:
    """lambda_max of `matrix` with its relative residual, and what follows from it.

    by_statistics: lambda_max read in each of the three ways asked for. by_layer: lambda_max of each layer's own block.
    hessian_max, hessian_min: the Hessian's ends, nan where not asked for. notes: conventions that were used.
    """

    lambda_max: float
    residual: float
    converged: bool
    eta_star: float
    rule: str
    loss: float
    loss_kind: str
    matrix: str
    stats: str
    products: int
    hessian_max: float
    hessian_min: float
    by_statistics: dict[str, float]
    by_layer: dict[str, float]
    notes: tuple[str, ...]
    settings: dict[str, Any]
    environment: dict[str, str | int]

    def verdict(self, lr: float) -> Verdict:
        """What a learning rate of `lr` means here, worded for the loss."""
        below = lr < self.eta_star
        share = f"lr = {lr:.3g} is {lr / self.eta_star:.2g} times eta* = {self.eta_star:.3g}"
        text = f"{share}: the local quadratic is {'stable' if below else 'unstable'}."
        good: bool | None = below
        if self.loss_kind == CROSS_ENTROPY:
            text += " " + NOT_A_LIMIT
            good = True if below else None
        elif not below and self.loss_kind == SQUARED:
            text += " Expect the loss to rise along the top eigenvector before the network adapts, if it does."
        if not self.converged:
            text += f" (Not converged: the residual is {self.residual:.1e}.)"
        return Verdict("learning rate", good, text, self.rule, f"curvature of this batch, {self.matrix}, {self.stats}")

    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(asdict(self))
        return found


def measure(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    batch: tuple[Any, Any],
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    matrix: str = "ggn",
    stats: str = "batch",
    compare: Sequence[str] = (),
    hessian: bool = False,
    layers: bool = False,
    parameters: Callable[[str, nn.Parameter], bool] | None = None,
    dtype: torch.dtype | None = None,
    tol: float = 1e-3,
    most: int = 100,
    seed: int = 0,
) -> Measurement:
    """lambda_max and eta* of this network on this batch, as it is trained; the model is left untouched.

    Args:
        model, loss_fn: loss_fn(model(x), y) is the scalar loss; the model in the modes it trains in.
        batch: (x, y), whole: with batch statistics the curvature of parts is that of another loss.
        momentum, nesterov: of gradient descent, for eta*; or optimizer= to read them, weight decay and the
            preconditioner of Adam, AdamW and RMSprop off the one that trains.
        matrix: "ggn" (generalized Gauss-Newton) or "hessian". hessian=True gives the Hessian's ends beside it.
        stats: how normalizers' batch statistics are read: "batch", "frozen" or "running"; compare= names others
            to give beside it.
        layers: lambda_max of every parameterized layer's own block too.
        parameters: (name, parameter) -> whether it is one to take curvature by; all trainable ones by default.
        dtype: of the products; the model's own by default.
        tol, most: relative residual to reach, in at most so many products; not reached is converged=False.
        seed: of the start vector.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> from normscope.losses import half_mse
        >>> found = measure(layer, half_mse, (x, x))
        >>> round(found.lambda_max, 4), round(found.eta_star, 4)
        (5.0, 0.4)
    """
    check_choice("matrix", matrix, MATRICES)
    for name in (stats, *compare):
        check_choice("stats", name, STATISTICS)
    inner, _, _ = unwrapped(model)
    trained = [p for p in inner.parameters() if p.requires_grad]
    limit = optimizer_limit(optimizer, trained) if optimizer else momentum_limit(momentum, nesterov=nesterov)
    if dtype is not None:
        inner, batch = _converted(inner, batch, dtype)
    with untouched(inner) as lent:
        chosen = _chosen(lent, parameters)
        look = _Look(lent, inner, loss_fn, batch, limit, tol, most, seed)
        loss = look.loss(stats)
        notes = _notes(lent, inner, stats)
        found = look.top(stats, matrix, chosen)
        if look.idle:
            notes += (f"No gradient reaches {', '.join(look.idle)}: their rows of the matrix are zero.",)
        ends = look.top(stats, "hessian", chosen, smallest=True) if hessian else None
        others = {name: look.top(name, matrix, chosen).values[0] + limit.decay for name in compare if name != stats}
        blocks = {
            name: look.top(stats, matrix, block).values[0] + limit.decay
            for name, block in (_blocks(lent, inner, chosen) if layers else {}).items()
        }
    top = found.values[0] + limit.decay
    return Measurement(
        lambda_max=top,
        residual=found.residuals[0],
        converged=found.converged,
        eta_star=limit.factor / top if top > 0 else math.inf,
        rule=limit.rule,
        loss=loss,
        loss_kind=loss_kind(loss_fn),
        matrix=matrix,
        stats=stats,
        products=found.products,
        hessian_max=ends.values[0] + limit.decay if ends else math.nan,
        hessian_min=ends.values[-1] + limit.decay if ends else math.nan,
        by_statistics={stats: top} | others,
        by_layer=blocks,
        notes=notes,
        settings={"momentum": momentum, "nesterov": nesterov, "tol": tol, "most": most, "seed": seed}
        | ({"optimizer": type(optimizer).__name__} if optimizer else {}),
        environment=environment(next((p.device for p in inner.parameters()), "cpu")),
    )


class _Look:
    """Top eigenvalues of one network on one batch, by kind of statistics, matrix and parameters."""

    def __init__(
        self,
        lent: Lent,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor],
        batch: tuple[Any, Any],
        limit: Limit,
        tol: float,
        most: int,
        seed: int,
    ) -> None:
        self._lent, self._model, self._loss_fn, self._batch = lent, model, loss_fn, batch
        self._limit, self._tol, self._most, self._seed = limit, tol, most, seed
        self.idle: list[str] = []

    def network(self, stats: str, chosen: Sequence[int] | None = None) -> Network:
        return Network(self._lent, self._model, self._loss_fn, self._batch, stats=stats, chosen=chosen)

    def loss(self, stats: str) -> float:
        network = self.network(stats)
        with torch.no_grad():
            loss = float(network.loss(network.output()))
        if not math.isfinite(loss):
            raise ValueError(f"The loss is {loss} here, so it has no curvature. {self._first_bad(stats)}")
        return loss

    def _first_bad(self, stats: str) -> str:
        seen: list[str] = []

        def watch(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            bad = any(isinstance(t, Tensor) and not t.isfinite().all() for t in tree_leaves(output))
            if bad and not seen:
                seen.append(f"{name} ({type(module).__name__})")

        self._lent.reset()
        with torch.no_grad(), reading(self._model, stats), Trace((watch,)).following(self._model):
            self._model(self._batch[0])
        return f"It first became so in the output of {seen[0]}." if seen else "The outputs are finite; the loss is not."

    def top(self, stats: str, matrix: str, chosen: Sequence[int], *, smallest: bool = False) -> Ritz:
        network = self.network(stats, chosen)
        gradients = network.gradients()
        names = [self._lent.names[i] for i in chosen]
        self.idle = [name for name, g in zip(names, gradients, strict=True) if g is None]
        gradient = flat(gradients, network.leaves)
        if not gradient.isfinite().all():
            bad = (name for name, g in zip(names, gradients, strict=True) if g is not None and not g.isfinite().all())
            raise ValueError(f"The loss is finite here, but its gradient is not finite at {next(bad)}: no curvature.")
        product = network.gauss_newton() if matrix == "ggn" else network.hessian()
        if self._limit.preconditioner is not None:
            picked = [self._limit.preconditioner[i] for i in chosen]
            half = torch.cat([p.reshape(-1) for p in picked]).to(gradient.dtype).rsqrt()
            bare, ridge = product, self._limit.ridge
            product = lambda v: half * (bare(half * v) + ridge * half * v)  # noqa: E731
        generator = torch.Generator().manual_seed(self._seed)
        start = torch.randn(network.size, generator=generator, dtype=torch.float64).to(gradient)
        size = gradient.norm()
        if size > 0:
            # The gradient has a large part in the top eigenvectors; the random part misses none of them.
            start = start / start.norm()
            start = start + gradient / size * (1.0 if start @ gradient >= 0 else -1.0)
        return lanczos(product, start, smallest=smallest, tol=self._tol, most=self._most)


def _chosen(lent: Lent, wanted: Callable[[str, nn.Parameter], bool] | None) -> list[int]:
    """Numbers of the parameters to take curvature by."""
    named = zip(lent.names, lent.originals, strict=True)
    chosen = [i for i, (name, p) in enumerate(named) if wanted is None or wanted(name, p)]
    if not chosen:
        left = "parameters= chose none of them" if lent.names else "none of the model's requires a gradient"
        raise ValueError(f"There is no parameter to take curvature by: {left}.")
    return chosen


def _blocks(lent: Lent, model: nn.Module, chosen: Sequence[int]) -> dict[str, list[int]]:
    """For each module that owns chosen parameters, their numbers."""
    index = {id(lent.leaves[i]): i for i in chosen}
    found = {
        name: [index[id(p)] for p in module.parameters(recurse=False) if id(p) in index]
        for name, module in model.named_modules()
    }
    return {name: block for name, block in found.items() if block}


def _notes(lent: Lent, model: nn.Module, stats: str) -> tuple[str, ...]:
    notes = []
    if stats != "running" and lent.generators.moved():
        notes.append("The forward draws random numbers (dropout, noise); every product was made with the same ones.")
    if (
        stats != "running"
        and not over_the_batch(model)
        and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    ):
        notes.append("The model's BatchNorm layers are in eval mode: their running statistics were used.")
    return tuple(notes)


def _converted(model: nn.Module, batch: tuple[Any, Any], dtype: torch.dtype) -> tuple[nn.Module, tuple[Any, Any]]:
    """Deep copies in another dtype."""
    x, y = (t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t for t in batch)
    return copy.deepcopy(model).to(dtype), (x, y)
