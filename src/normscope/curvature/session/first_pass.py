r"""Passes of a session before any search: loss and gradient, the kind of the loss, second moments of the gradient.

The first pass refuses what has no curvature: a loss or a gradient that is not finite. It also looks whether outputs
depend on other samples where no normalizer makes them so. An optimizer that has made no step has no second moments.
They are then the squares of the gradients here, averaged over batches:

    v = mean_b (g_b + w theta)^2          w: weight decay that the optimizer adds to the gradient, else 0

Adam's running average, corrected for its start, is this mean over its last batches, and RMSprop's settles at it. An
Adagrad's sum grows with each step; its value after the first step is taken. Parameters stay where they are, and nothing
is written into the optimizer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normscope.curvature.operators.loss_of_outputs import own_loss_of
from normscope.curvature.operators.network_products import FirstGraph, Network
from normscope.curvature.operators.statistics import AS_TRAINED, enough_values, mode_of, statistics_mode
from normscope.curvature.session.session import Session
from normscope.isolation.batch_copies import Copies
from normscope.isolation.flat_vectors import flat, split
from normscope.isolation.module_calls import CallTrace
from normscope.loss_kinds import FLAT, LossKind, kind_by_name, kind_of
from normscope.loss_kinds.computed_by_model import kind_inside
from normscope.objective import main_output
from normscope.stability.optimizer_limits import SecondMoments
from normscope.stability.optimizer_rules import coupled_decay, has_no_moments_yet

# Batches for second moments. More would change v by a few percent, and cost a gradient each.
_MOST_BATCHES = 5


@dataclass(frozen=True)
class FirstPass:
    """The loss and its gradient, averaged or summed over the batches as the curvature is.

    Attributes:
        loss: the value of the loss.
        gradient: its gradient with respect to the chosen parameters, as one vector.
        unused: names of parameters without any gradient.
    """

    loss: float
    gradient: Tensor
    unused: list[str]


def first_pass(session: Session, stats: str, matrix: str = "") -> tuple[FirstPass, FirstGraph | None]:
    """The loss and its gradient, and the graph of one batch for products with `matrix`.

    Raises where the loss or its gradient is not finite. Several batches keep no graph.
    """
    names = [session.lent.names[i] for i in session.chosen]
    unused = set(names)
    graphs: list[FirstGraph | None] = []

    def local() -> list[Tensor]:
        loss_of_all, gradient_of_all = torch.zeros(()), torch.zeros(())
        weights, networks = session.weights(stats), session.networks(stats)
        for network, weight, batch in zip(networks, weights, session.batches, strict=True):
            with enough_values(), session.lent.guard.first_pass():
                loss, gradients, graph = network.value_and_gradients(matrix if len(networks) == 1 else "")
            session.observed.forward_draws |= session.lent.restores_generators
            _observe_mixing(session, network, stats)
            _refuse_not_finite(session, loss, dict(zip(names, gradients, strict=True)), batch, stats)
            unused.difference_update(name for name, g in zip(names, gradients, strict=True) if g is not None)
            loss_of_all = loss_of_all + weight * loss.detach().cpu()
            gradient_of_all = gradient_of_all.to(loss.device) + weight * flat(gradients, network.leaves)
            graphs.append(graph)
        return [loss_of_all, gradient_of_all]

    loss, gradient = session.processes.mean(local)
    return FirstPass(float(loss), gradient, [name for name in names if name in unused]), graphs[-1]


def session_loss_kind(session: Session, stats: str) -> LossKind:
    """The kind of the loss, by what it computes on the first batch that it reads anything of."""
    if named := kind_by_name(session.loss_fn):
        return LossKind(named)

    def local() -> LossKind:
        kind = FLAT
        for network in session.networks(stats):
            if session.loss_fn is own_loss_of:
                outputs = network.output()
                return kind_inside(network.loss(outputs), main_output(outputs))
            with torch.no_grad():
                outputs = network.output()
            kind = kind_of(network.loss, outputs, None)
            if kind != FLAT:
                break
        return kind

    return session.processes.each(local)


def loss_function(session: Session, stats: str) -> Callable[[], float]:
    """A function that gives the loss at the values that the lent parameters have when it is called."""
    weights, networks = session.weights(stats), session.networks(stats)

    def local() -> list[Tensor]:
        weighted = zip(weights, networks, strict=True)
        return [torch.stack([weight * network.value().double().cpu() for weight, network in weighted]).sum()]

    return lambda: float(session.processes.mean(local)[0])


def observe_mixing(session: Session, stats: str) -> None:
    """Look in one pass whether outputs depend on other samples in this statistics mode."""
    session.processes.each(lambda: _observe_mixing(session, session.networks(stats)[0], stats))


def _observe_mixing(session: Session, network: Network, stats: str) -> None:
    if mode_of(stats).as_trained:
        return
    with enough_values():
        if network.mixes():
            session.observed.mixing.add(stats)


def gathered_moments(optimizer: torch.optim.Optimizer, session: Session) -> SecondMoments | None:
    """SecondMoments over at most `_MOST_BATCHES` batches of the session; None where the optimizer has its own."""
    lent, chosen = session.lent, session.chosen
    if not has_no_moments_yet(optimizer, [lent.originals[i] for i in chosen]):
        return None
    leaves = [lent.leaves[i] for i in chosen]
    decays = [coupled_decay(optimizer, lent.originals[i]) for i in chosen]
    used = session.batches[:_MOST_BATCHES]
    means, squares = ([torch.zeros_like(leaf) for leaf in leaves] for _ in range(2))
    for batch in used:
        gradient = split(first_pass(session.with_batches([batch]), AS_TRAINED)[0].gradient, leaves)
        for mean, square, slope, leaf, decay in zip(means, squares, gradient, leaves, decays, strict=True):
            with_decay = slope + decay * leaf.detach()
            mean += with_decay / len(used)
            square += with_decay.square() / len(used)
    return SecondMoments(dict(zip(chosen, means, strict=True)), dict(zip(chosen, squares, strict=True)), len(used))


def _refuse_not_finite(
    session: Session, loss: Tensor, gradients: dict[str, Tensor | None], batch: Sequence[Any], stats: str
) -> None:
    if not loss.isfinite():
        # A pass of one process alone would wait for the others where it exchanges statistics.
        where = _first_not_finite(session, batch, stats) if session.processes.size == 1 else "Look at its batch."
        raise ValueError(f"The loss is {float(loss)} here, so it has no curvature. {where}")
    for name, gradient in gradients.items():
        if gradient is not None and not gradient.isfinite().all():
            raise ValueError(f"The loss is finite here, but its gradient is not finite at {name}: no curvature.")


def _first_not_finite(session: Session, batch: Sequence[Any], stats: str) -> str:
    """A sentence that names the first layer with an output that is not finite."""
    layers: list[str] = []

    def watch(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if _not_finite(output) and not layers:
            layers.append(f"{name} ({type(module).__name__})")

    if _not_finite(batch):
        return "The batch itself is not finite: look at x and y."
    session.lent.reset()
    with torch.no_grad(), statistics_mode(session.model, stats), CallTrace((watch,)).following(session.model):
        session.options.call(session.model, Copies(batch[0]).take())
    if not layers:
        return "The outputs are finite; the loss is not."
    return f"It first became so in the output of {layers[0]}."


def _not_finite(values: Any) -> bool:
    return any(isinstance(t, Tensor) and not t.isfinite().all() for t in tree_leaves(values))
