r"""The largest stable learning rate of an optimizer on a quadratic, from its largest eigenvalue.

    gradient descent, momentum mu, dampening tau     eta* = 2 (1 + mu) / ((1 - tau) lambda)
    Nesterov's momentum                              eta* = 2 (1 + mu) / ((1 + 2 mu) lambda)
    Adam, AdamW (beta_1)                             eta* = 2 (1 + beta_1) / ((1 - beta_1) lambda_P)
    NAdam (beta_1, mu and mu' of its schedule)       eta* = 2 (1 + b) / (((1 - mu) (1 + b) + mu' (1 - b)) lambda_P)
    RMSprop (momentum mu)                            eta* = 2 (1 + mu) / lambda_P
    Adagrad (after t steps)                          eta* = 2 (1 + t lr_decay) / lambda_P

lambda is the top eigenvalue of H + R (R the weight decay that the optimizer adds to the gradient, a diagonal: each
parameter's own); lambda_P that of P^-1/2 (H + R) P^-1/2 with the optimizer's own diagonal P = sqrt(v_hat) + eps, held
constant. Decoupled decay D (AdamW) is not divided by P and skips the average of the gradients: with x_t = (-1)^t x in

    x_{t+1} = (1 - eta D) x_t + b (x_t - (1 - eta D) x_{t-1}) - eta (1 - b) M x_t,     M = P^-1/2 H P^-1/2,  b = beta_1

one finds (1 + b) (2 - eta D) x = eta (1 - b) M x, so lambda_P is that of M + D (1 + b) / (1 - b). M and D need not
commute: for a root z of this recursion with vector x, z^2 - p z + q = 0 with real p, q (forms of symmetric matrices),
and |p| < 1 + q is eta < eta*. NAdam steps by (1 - mu) g + mu' m, with m the average of the gradients; x_t = (-1)^t x
gives m = (1 - b) / (1 + b) g, whence its rule, and with kappa = 2 / factor, D / kappa beside M as above. Its mu, mu' =
beta_1 (1 - 0.96^(psi t) / 2) at steps t and t + 1 are held constant as P is. An Adagrad's sum, and with it its eta*,
grows with every step: eta* is that of the next one. Learning rates that differ between groups are a diagonal too: eta*
is that of the largest rate, the others in proportion, P divided by their share of it. Beyond eta* the iteration grows
along the top eigenvector. Parameters that the optimizer has never had a gradient of do not move, and have no part in
it.
Sources: seed 002, Eq. (7) for momentum; the others from the same two-term recursion x_{t+1} = (1 + a) x_t - a x_{t-1}
- eta (...), whose characteristic root passes -1 at eta* (checked by running it); for Adam this is arXiv 2207.14484.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Product = Callable[[Tensor], Tensor]
_KNOWN = tuple(getattr(torch.optim, name) for name in ("SGD", "Adam", "AdamW", "NAdam", "RMSprop", "Adagrad"))


@dataclass(frozen=True)
class Limit:
    """eta* = factor / lambda. rule: its formula. The rest is one tensor for each parameter, None where there is none.

    inverse: the diagonal of P^-1; None for gradient descent at one learning rate. ridge, decay: what weight decay adds
    to the matrix before and after it is preconditioned. idle: numbers of parameters that the optimizer does not move.
    """

    factor: float
    rule: str
    inverse: tuple[Tensor, ...] | None = None
    ridge: tuple[Tensor, ...] | None = None
    decay: tuple[Tensor, ...] | None = None
    idle: tuple[int, ...] = ()


@dataclass(frozen=True)
class Moments:
    """Gradients' mean and mean square over `batches`, by the parameter's number, for an optimizer without a state."""

    mean: Mapping[int, Tensor]
    square: Mapping[int, Tensor]
    batches: int


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


def optimizer_limit(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    chosen: Sequence[int] | None = None,
    moments: Moments | None = None,
) -> Limit:
    """Read off `optimizer` as it stands, for the parameters number `chosen` (all): one rule for their groups.

    moments: in the place of second moments that it does not have yet (`moments.py`).
    """
    kind = type(optimizer)
    wanted = {id(parameters[i]) for i in (range(len(parameters)) if chosen is None else chosen)}
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"] if id(p) in wanted}
    used = [group for group in optimizer.param_groups if any(id(p) in wanted for p in group["params"])]
    if kind not in _KNOWN:
        names = ", ".join(known.__name__ for known in _KNOWN)
        raise ValueError(
            f"No stability bound is known here for {kind.__name__}; there is one for {names}. For another leave "
            "optimizer= out, and momentum= gives gradient descent's."
        )
    if any(group["maximize"] for group in used):
        raise ValueError(
            f"This {kind.__name__} maximizes, so the curvature that limits it is that of the negative loss. Measure "
            "-loss with an optimizer that has maximize=False."
        )
    factor, rule, decoupled = _rule(optimizer, kind, used)
    own = [groups.get(id(p)) for p in parameters]
    rates = [0.0 if group is None else float(group["lr"]) for group in own]
    largest = max(rates)
    shares = [
        0.0 if group is None else rate / largest if largest else 1.0 for group, rate in zip(own, rates, strict=True)
    ]
    inverse: list[Tensor] | None = None
    if kind is not torch.optim.SGD:
        inverse = [s * m for s, m in zip(shares, _inverses(optimizer, parameters, own, moments), strict=True)]
    elif {share for group, share in zip(own, shares, strict=True) if group is not None} != {1.0}:
        inverse = [torch.tensor(share) for share in shares]
    if len(set(rates) - {0.0}) > 1:
        rule += ", of the largest learning rate with the others in proportion"
    idle = tuple(i for i, m in enumerate(inverse or []) if not m.any())
    decays = [0.0 if group is None else float(group["weight_decay"]) for group in own]
    if decoupled is not None:
        decays = [0.0 if i in idle else decoupled * shares[i] * decay for i, decay in enumerate(decays)]
    added = tuple(torch.tensor(d, dtype=torch.float64) for d in decays) if any(decays) else None
    ridge, decay = (added, None) if decoupled is None else (None, added)
    return Limit(factor, rule, None if inverse is None else tuple(inverse), ridge, decay, idle)


def _rule(
    optimizer: torch.optim.Optimizer, kind: type, groups: Sequence[dict[str, Any]]
) -> tuple[float, str, float | None]:
    """Factor, formula, and what decoupled weight decay is multiplied by (None for the coupled one)."""
    if kind is torch.optim.SGD:
        momentum, nesterov, dampening = _one({(g["momentum"], g["nesterov"], g["dampening"]) for g in groups}, kind)
        limit = momentum_limit(momentum, nesterov=nesterov, dampening=dampening)
        return limit.factor, limit.rule, None
    if kind is torch.optim.RMSprop:
        (momentum,) = _one({(g["momentum"],) for g in groups}, kind)
        return 2 * (1 + momentum), "eta* = 2 (1 + mu) / lambda_P, P = sqrt(v) + eps held constant", None
    steps = _steps(optimizer, groups)
    if kind is torch.optim.Adagrad:
        (decay,) = _one({(g["lr_decay"],) for g in groups}, kind)
        rule = "eta* = 2 / lambda_P, P = sqrt(sum) + eps held constant"
        return 2 * (1 + decay * steps), rule if not decay else rule.replace("2 /", "2 (1 + t lr_decay) /"), None
    settings = {(g["betas"][0], g.get("decoupled_weight_decay", kind is torch.optim.AdamW)) for g in groups}
    beta, decoupled = _one(settings, kind)
    if kind is torch.optim.NAdam:
        (psi,) = _one({(g["momentum_decay"],) for g in groups}, kind)
        now, following = (beta * (1 - 0.5 * 0.96 ** (psi * t)) for t in (steps + 1, steps + 2))
        share = (1 - now) + following * (1 - beta) / (1 + beta)
        rule = "eta* = 2 (1 + b) / (((1 - mu) (1 + b) + mu' (1 - b)) lambda_P), b = beta_1, "
        return 2 / share, rule + "P = sqrt(v_hat) + eps held constant", 1 / share if decoupled else None
    rule = "eta* = 2 (1 + beta_1) / ((1 - beta_1) lambda_P), P = sqrt(v_hat) + eps held constant"
    beside = (1 + beta) / (1 - beta) if decoupled or kind is torch.optim.AdamW else None
    return 2 * (1 + beta) / (1 - beta), rule, beside


def _steps(optimizer: torch.optim.Optimizer, groups: Sequence[dict[str, Any]]) -> float:
    """Steps made so far: the most of any parameter."""
    states = [optimizer.state.get(p, {}) for group in groups for p in group["params"]]
    return max((float(state["step"]) for state in states if "step" in state), default=0.0)


def _one(settings: set[Any], kind: type) -> Any:
    if len(settings) > 1:
        raise ValueError(f"The parameter groups of this {kind.__name__} differ in their settings; no one bound holds.")
    return settings.pop()


def fresh(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> bool:
    """Whether it divides by second moments and has had no gradient of any of these parameters yet."""
    if type(optimizer) not in _KNOWN or type(optimizer) is torch.optim.SGD:
        return False
    states = [optimizer.state.get(p, {}) for p in parameters]
    # An Adagrad's sum is there from the start.
    return not any(float(state.get("step", 0.0)) for state in states)


def adds_decay(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> float:
    """The weight decay that goes into the gradient of this parameter, and so into its second moment."""
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    decoupled = group.get("decoupled_weight_decay", type(optimizer) is torch.optim.AdamW)
    return 0.0 if decoupled else float(group["weight_decay"])


def _inverses(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    groups: Sequence[dict[str, Any] | None],
    moments: Moments | None,
) -> list[Tensor]:
    """The diagonal of P^-1 for each parameter; zero where the optimizer has had no gradient of it, ever."""
    found = []
    for i, (parameter, group) in enumerate(zip(parameters, groups, strict=True)):
        second = None if group is None else _second(optimizer, parameter, i, group, moments)
        found.append(torch.zeros(()) if group is None or second is None else 1 / (second.sqrt() + group["eps"]))
    if not any(inverse.any() for inverse in found):
        raise ValueError(
            f"{type(optimizer).__name__} has no second moments yet: its preconditioner exists after the first step."
        )
    return found


def _second(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter, i: int, group: dict[str, Any], moments: Moments | None
) -> Tensor | None:
    """The second moment that the optimizer takes the root of; None where it does not move the parameter."""
    state = optimizer.state.get(parameter, {})
    if moments is not None:
        second = moments.square.get(i)
        if second is None or not second.any():
            return None
        if "sum" in state:
            second = second + state["sum"]
        return (second - moments.mean[i].square()).clamp_min(0) if group.get("centered") else second
    if "sum" in state:
        return None if not float(state["step"]) else state["sum"]
    second = state.get("max_exp_avg_sq", state.get("exp_avg_sq", state.get("square_avg")))
    if second is None:
        return None
    if "betas" in group:
        second = second / (1 - group["betas"][1] ** float(state["step"]))
    return (second - state["grad_avg"].square()).clamp_min(0) if group.get("centered") else second


def preconditioned(
    product: Product, limit: Limit, chosen: Sequence[int] | None, leaves: Sequence[Tensor]
) -> tuple[Product, Tensor | None]:
    """v -> P^-1/2 (A + R) P^-1/2 v + D v, and the vector of P^-1/2, for the parameters number `chosen` (all)."""

    def along(values: Sequence[Tensor] | None) -> Tensor | None:
        if values is None:
            return None
        picked = values if chosen is None else [values[i] for i in chosen]
        return torch.cat([v.to(leaf).expand_as(leaf).reshape(-1) for v, leaf in zip(picked, leaves, strict=True)])

    inverse, ridge, decay = map(along, (limit.inverse, limit.ridge, limit.decay))
    half = None if inverse is None else inverse.sqrt()

    def whole(v: Tensor) -> Tensor:
        w = v if half is None else half * v
        found = product(w)
        found = found if ridge is None else found + ridge * w
        found = found if half is None else half * found
        return found if decay is None else found + decay * v

    return whole, half
