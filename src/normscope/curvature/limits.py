r"""The largest stable learning rate of an optimizer on a quadratic, from its largest eigenvalue.

    gradient descent, momentum mu, dampening tau     eta* = 2 (1 + mu) / ((1 - tau) lambda)
    Nesterov's momentum                              eta* = 2 (1 + mu) / ((1 + 2 mu) lambda)
    Adam, AdamW (beta_1)                             eta* = 2 (1 + beta_1) / ((1 - beta_1) lambda_P)
    RMSprop (momentum mu)                            eta* = 2 (1 + mu) / lambda_P

lambda is the top eigenvalue of H + wd (weight decay as the optimizer adds it to the gradient); lambda_P that of
P^-1/2 (H + wd) P^-1/2 with the optimizer's own diagonal P = sqrt(v_hat) + eps, held constant. Decoupled decay (AdamW)
is not divided by P and skips the average of the gradients: along an eigenvector

    x_{t+1} = (1 - eta wd) x_t + b (x_t - (1 - eta wd) x_{t-1}) - eta (1 - b) lambda_P x_t,     b = beta_1

has the root -1 where (1 + b) (2 - eta wd) = eta (1 - b) lambda_P, so lambda_P + wd (1 + b) / (1 - b) takes lambda_P's
place. Beyond eta* the iteration grows along the top eigenvector.
Sources: seed 002, Eq. (7) for momentum; the others from the same two-term recursion x_{t+1} = (1 + a) x_t - a x_{t-1}
- eta (...), whose characteristic root passes -1 at eta* (checked by running it); for Adam this is arXiv 2207.14484.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Limit:
    """eta* = factor / lambda. rule: its formula. decay: what weight decay adds to the eigenvalue.

    preconditioner: the optimizer's diagonal P for each parameter, None for gradient descent.
    ridge: what weight decay adds to the matrix before it is preconditioned.
    """

    factor: float
    rule: str
    decay: float = 0.0
    preconditioner: tuple[Tensor, ...] | None = None
    ridge: float = 0.0


def momentum_limit(momentum: float = 0.0, *, nesterov: bool = False, dampening: float = 0.0) -> Limit:
    """Of gradient descent with momentum.

    Example:
        >>> momentum_limit(0.9).factor
        3.8
    """
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is at least 0 and less than 1; got {momentum}.")
    if not dampening < 1:
        raise ValueError(f"dampening is less than 1, or no gradient gets into the momentum; got {dampening}.")
    if momentum == 0:
        dampening = 0.0  # torch's SGD has no use for it without momentum
    if nesterov:
        return Limit(2 * (1 + momentum) / (1 + 2 * momentum), "eta* = 2 (1 + mu) / ((1 + 2 mu) lambda)")
    rule = "eta* = 2 (1 + mu) / lambda" if not dampening else "eta* = 2 (1 + mu) / ((1 - dampening) lambda)"
    return Limit(2 * (1 + momentum) / (1 - dampening), rule)


def optimizer_limit(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> Limit:
    """Read off `optimizer` as it stands; one rule for all its groups, or a message."""
    groups = optimizer.param_groups
    kind = type(optimizer)
    if kind is torch.optim.SGD:
        settings = {(g["momentum"], g["nesterov"], g["dampening"], g["weight_decay"]) for g in groups}
        (momentum, nesterov, dampening, decay) = _one(settings, kind)
        limit = momentum_limit(momentum, nesterov=nesterov, dampening=dampening)
        return Limit(limit.factor, limit.rule, decay)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        read = {(g["betas"][0], g["weight_decay"], g.get("decoupled_weight_decay", False)) for g in groups}
        beta, decay, decoupled = _one(read, kind)
        beside = decay * (1 + beta) / (1 - beta) if decoupled or kind is torch.optim.AdamW else 0.0
        rule = "eta* = 2 (1 + beta_1) / ((1 - beta_1) lambda_P), P = sqrt(v_hat) + eps held constant"
        moments = _second_moments(optimizer, parameters)
        return Limit(2 * (1 + beta) / (1 - beta), rule, beside, moments, 0.0 if beside else decay)
    if kind is torch.optim.RMSprop:
        momentum, decay = _one({(g["momentum"], g["weight_decay"]) for g in groups}, kind)
        rule = "eta* = 2 (1 + mu) / lambda_P, P = sqrt(v) + eps held constant"
        return Limit(2 * (1 + momentum), rule, 0.0, _second_moments(optimizer, parameters), decay)
    raise ValueError(
        f"No stability bound is known here for {kind.__name__}. There is one for SGD, Adam, AdamW and RMSprop; for "
        "another pass momentum= to get gradient descent's."
    )


def _one(settings: set[Any], kind: type) -> Any:
    if len(settings) > 1:
        raise ValueError(f"The parameter groups of this {kind.__name__} differ in their settings; no one bound holds.")
    return settings.pop()


def _second_moments(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> tuple[Tensor, ...]:
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    found = []
    for parameter in parameters:
        state, group = optimizer.state.get(parameter, {}), group_of.get(id(parameter), {})
        second = state.get("max_exp_avg_sq", state.get("exp_avg_sq", state.get("square_avg")))
        if second is None:
            raise ValueError(
                f"{type(optimizer).__name__} has no second moments yet: its preconditioner exists after the first step."
            )
        if "betas" in group:
            second = second / (1 - group["betas"][1] ** float(state["step"]))
        if group.get("centered"):
            second = (second - state["grad_avg"].square()).clamp_min(0)
        found.append(second.sqrt() + group["eps"])
    return tuple(found)
