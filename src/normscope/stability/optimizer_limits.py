r"""The largest stable learning rate of an optimizer on a quadratic: eta* = factor / (top eigenvalue).

The factor, and what the matrix is divided by, are those of the optimizer's rule (`optimizer_rules.py`).

**Learning rates that differ between groups** are a diagonal too: eta* is that of the largest rate, with the others in
proportion, and P is divided by their share of it.

Beyond eta* the iteration grows along the top eigenvector. A parameter that the optimizer has never had a gradient of
does not move, and has no part in the limit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normscope.linear_maps import Product
from normscope.stability.optimizer_rules import RULES, Registered, momentum_rule


@dataclass(frozen=True)
class Limit:
    """The limit eta* = factor / lambda; tensors are one for each parameter, or None.

    Attributes:
        factor: eta* times the top eigenvalue; no unit.
        rule: the formula of eta*.
        inverse: the diagonal of P^-1; None for gradient descent at one learning rate.
        ridge: the part that weight decay adds to the matrix before it is preconditioned.
        decay: the part that weight decay adds to the matrix after it is preconditioned.
        idle: numbers of parameters that the optimizer does not move.
    """

    factor: float
    rule: str
    inverse: tuple[Tensor, ...] | None = None
    ridge: tuple[Tensor, ...] | None = None
    decay: tuple[Tensor, ...] | None = None
    idle: tuple[int, ...] = ()


@dataclass(frozen=True)
class SecondMoments:
    """Mean and mean square of gradients over `batches`, by the parameter's number, for an optimizer without a state."""

    mean: Mapping[int, Tensor]
    square: Mapping[int, Tensor]
    batches: int

    def of(self, i: int, registered: Registered, state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor | None:
        """The second moment of parameter number i after a first step; None where the loss has no gradient of it."""
        square = self.square.get(i)
        if square is None or not square.any():
            return None
        return registered.first_second_moment(self.mean[i], square, state, group)


def momentum_limit(momentum: float = 0.0, *, nesterov: bool = False, dampening: float = 0.0) -> Limit:
    """The limit of gradient descent with momentum.

    Args:
        momentum: SGD momentum, in [0, 1).
        nesterov: whether the momentum is Nesterov's.
        dampening: SGD dampening.

    Returns:
        The `Limit`: eta* is its factor over lambda_max.

    Example:
        >>> momentum_limit(0.9).factor
        3.8
    """
    rule = momentum_rule(momentum, nesterov, dampening)
    return Limit(rule.factor, rule.formula)


def optimizer_limit(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    chosen: Sequence[int] | None = None,
    moments: SecondMoments | None = None,
) -> Limit:
    """The limit of `optimizer` in its present state, for the parameters of the numbers `chosen` (all by default).

    Args:
        optimizer: an optimizer of torch.
        parameters: parameters of the model, in their order.
        chosen: numbers of the parameters that count; all by default.
        moments: second moments for an optimizer that has made no step.

    Returns:
        The `Limit`: eta* is its factor over the top eigenvalue of the preconditioned matrix.

    Raises:
        ValueError: an optimizer without a known stability bound, or one that maximizes.
    """
    chosen_ids = {id(parameters[i]) for i in (range(len(parameters)) if chosen is None else chosen)}
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"] if id(p) in chosen_ids}
    used_groups = [group for group in optimizer.param_groups if any(id(p) in chosen_ids for p in group["params"])]
    name = type(optimizer).__name__
    if type(optimizer) not in RULES:
        names = ", ".join(known.__name__ for known in RULES)
        raise ValueError(
            f"No stability bound is known here for {name}; there is one for {names}. For another leave "
            "optimizer= out, and momentum= gives gradient descent's."
        )
    if any(group["maximize"] for group in used_groups):
        raise ValueError(
            f"This {name} maximizes, so the curvature that limits it is that of the negative loss. Measure "
            "-loss with an optimizer that has maximize=False."
        )
    registered = RULES[type(optimizer)]
    factor, formula, decoupled = registered.rule(optimizer, used_groups)
    group_of_each = [groups.get(id(p)) for p in parameters]
    rates = [0.0 if group is None else float(group["lr"]) for group in group_of_each]
    largest = max(rates)
    shares = [
        0.0 if group is None else rate / largest if largest else 1.0
        for group, rate in zip(group_of_each, rates, strict=True)
    ]
    inverse: list[Tensor] | None = None
    if registered.second_moment is not None:
        inverses = _inverses(optimizer, registered, parameters, group_of_each, moments)
        inverse = [s * m for s, m in zip(shares, inverses, strict=True)]
    elif {share for group, share in zip(group_of_each, shares, strict=True) if group is not None} != {1.0}:
        inverse = [torch.tensor(share) for share in shares]
    if len(set(rates) - {0.0}) > 1:
        formula += ", of the largest learning rate with the others in proportion"
    idle = tuple(i for i, m in enumerate(inverse or []) if not m.any())
    decays = [0.0 if group is None else float(group["weight_decay"]) for group in group_of_each]
    if decoupled is not None:
        decays = [0.0 if i in idle else decoupled * shares[i] * decay for i, decay in enumerate(decays)]
    added = tuple(torch.tensor(d, dtype=torch.float64) for d in decays) if any(decays) else None
    ridge, decay = (added, None) if decoupled is None else (None, added)
    return Limit(factor, formula, None if inverse is None else tuple(inverse), ridge, decay, idle)


def _inverses(
    optimizer: torch.optim.Optimizer,
    registered: Registered,
    parameters: Sequence[nn.Parameter],
    groups: Sequence[dict[str, Any] | None],
    moments: SecondMoments | None,
) -> list[Tensor]:
    """The diagonal of P^-1 for each parameter; zero where the optimizer has had no gradient of it, ever."""
    inverses = []
    for i, (parameter, group) in enumerate(zip(parameters, groups, strict=True)):
        second = None
        if group is not None:
            state = optimizer.state.get(parameter, {})
            if moments is not None:
                second = moments.of(i, registered, state, group)
            elif registered.second_moment is not None:
                second = registered.second_moment(state, group)
        inverses.append(torch.zeros(()) if group is None or second is None else 1 / (second.sqrt() + group["eps"]))
    if not any(inverse.any() for inverse in inverses):
        raise ValueError(
            f"{type(optimizer).__name__} has no second moments yet: its preconditioner exists after the first step."
        )
    return inverses


class Preconditioned(NamedTuple):
    """The operator whose largest eigenvalue is lambda_P.

    Attributes:
        product: v -> P^-1/2 (A + R) P^-1/2 v + D v.
        inverse_root: the diagonal of P^-1/2; None for an optimizer without a preconditioner.
    """

    product: Product
    inverse_root: Tensor | None


def preconditioned(
    product: Product, limit: Limit, chosen: Sequence[int] | None, leaves: Sequence[Tensor]
) -> Preconditioned:
    """Put the optimizer's preconditioner around the product v -> A v.

    chosen: numbers of the parameters that `product` goes over; None for all.
    """

    def along(values: Sequence[Tensor] | None) -> Tensor | None:
        if values is None:
            return None
        picked = values if chosen is None else [values[i] for i in chosen]
        return torch.cat([v.to(leaf).expand_as(leaf).reshape(-1) for v, leaf in zip(picked, leaves, strict=True)])

    inverse, ridge, decay = map(along, (limit.inverse, limit.ridge, limit.decay))
    root = None if inverse is None else inverse.sqrt()

    def preconditioned_product(v: Tensor) -> Tensor:
        w = v if root is None else root * v
        image = product(w)
        image = image if ridge is None else image + ridge * w
        image = image if root is None else root * image
        return image if decay is None else image + decay * v

    return Preconditioned(preconditioned_product, root)
