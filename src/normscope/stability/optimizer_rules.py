r"""The stability rule of each optimizer on a quadratic: one function for each, registered by `@rule_for`.

    gradient descent, momentum mu, dampening tau     eta* = 2 (1 + mu) / ((1 - tau) lambda)
    Nesterov's momentum                              eta* = 2 (1 + mu) / ((1 + 2 mu) lambda)
    Adam, AdamW (beta_1)                             eta* = 2 (1 + beta_1) / ((1 - beta_1) lambda_P)
    NAdam (beta_1, mu and mu' of its schedule)       eta* = 2 (1 + b) / (((1 - mu) (1 + b) + mu' (1 - b)) lambda_P)
    RMSprop (momentum mu)                            eta* = 2 (1 + mu) / lambda_P
    Adagrad (after t steps)                          eta* = 2 (1 + t lr_decay) / lambda_P

lambda is the top eigenvalue of H + R, with R the diagonal of the weight decay that the optimizer adds to the gradient.
lambda_P is that of P^-1/2 (H + R) P^-1/2, with the optimizer's own diagonal P = sqrt(v_hat) + eps held constant.

**Decoupled weight decay** D (AdamW) is not divided by P and skips the average of the gradients. With x_t = (-1)^t x in

    x_{t+1} = (1 - eta D) x_t + b (x_t - (1 - eta D) x_{t-1}) - eta (1 - b) M x_t,     M = P^-1/2 H P^-1/2,  b = beta_1

one finds (1 + b) (2 - eta D) x = eta (1 - b) M x, so lambda_P is that of M + D (1 + b) / (1 - b). M and D need not
commute: for a root z of this recursion with vector x, z^2 - p z + q = 0 with real p, q (forms of symmetric matrices),
and |p| < 1 + q is eta < eta*.

**NAdam** steps by (1 - mu) g + mu' m, with m the average of the gradients. x_t = (-1)^t x gives
m = (1 - b) / (1 + b) g, from which the rule follows. Decoupled decay stands beside M as above, as D / kappa with
kappa = 2 / factor. NAdam's mu and mu', equal to beta_1 (1 - 0.96^(psi t) / 2) at steps t and t + 1, are held constant
as P is.

**Adagrad's** sum grows with every step, and its eta* with it: eta* is that of the next step.

To add an optimizer, write its rule here. If it divides the gradient by the root of second moments, register the
function that reads them from its state as `second_moment=`. If those after its first step are not the squares of its
gradients, register them as `first_second_moment=`. Once shares of its critical rate have been measured
(`first_guess_evidence.py`), register the kind of descent as `descent=`; without it no first guess is named.

Sources: Wei et al. 2019, Eq. (7) for momentum. The others follow from the same two-term recursion
x_{t+1} = (1 + a) x_t - a x_{t-1} - eta (...), whose characteristic root passes -1 at eta* (checked by running it). For
Adam this is arXiv 2207.14484.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Groups = Sequence[Mapping[str, Any]]
# Kinds of descent for which shares of the critical rate were measured.
PLAIN, MOMENTUM, ADAM = "gradient descent", "momentum", "Adam"


class OptimizerRule(NamedTuple):
    """eta* = factor / lambda, and its formula. decoupled: multiplies decoupled weight decay; None for coupled decay."""

    factor: float
    formula: str
    decoupled: float | None = None


Rule = Callable[[torch.optim.Optimizer, Groups], OptimizerRule]
ReadSecondMoment = Callable[[Mapping[str, Any], Mapping[str, Any]], Tensor | None]
FirstSecondMoment = Callable[[Tensor, Tensor, Mapping[str, Any], Mapping[str, Any]], Tensor]


def _mean_square(mean: Tensor, square: Tensor, state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    return square


class Registered(NamedTuple):
    """The rule of an optimizer, and how it is preconditioned.

    Attributes:
        rule: a function of the optimizer and its parameter groups in question.
        second_moment: a function of the state and the group of a parameter. It gives the second moment that the
            optimizer takes the root of, or None before the first gradient of the parameter. It is None itself for an
            optimizer that divides by nothing.
        first_second_moment: a function of the mean and the mean square of the first gradients, and of the state and the
            group of their parameter. It gives the second moment that the first step will have.
        descent: a function of the settings of a parameter group. It gives PLAIN, MOMENTUM or ADAM, or "" where no share
            of the critical rate was measured.
    """

    rule: Rule
    second_moment: ReadSecondMoment | None
    first_second_moment: FirstSecondMoment = _mean_square
    descent: Callable[[Mapping[str, Any]], str] = lambda settings: ""


RULES: dict[type, Registered] = {}


def rule_for(
    *classes: type,
    second_moment: ReadSecondMoment | None = None,
    first_second_moment: FirstSecondMoment = _mean_square,
    descent: Callable[[Mapping[str, Any]], str] = lambda settings: "",
) -> Callable[[Rule], Rule]:
    """Register a rule for these classes of optimizers; the other arguments as in `Registered`."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(classes, Registered(rule, second_moment, first_second_moment, descent)))
        return rule

    return register


def _of_adam(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor | None:
    second = state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
    return None if second is None else second / (1 - group["betas"][1] ** float(state["step"]))


def _of_rmsprop(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor | None:
    second: Tensor | None = state.get("square_avg")
    if second is None or not group["centered"]:
        return second
    return (second - state["grad_avg"].square()).clamp_min(0)


def _first_of_rmsprop(mean: Tensor, square: Tensor, state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    return (square - mean.square()).clamp_min(0) if group["centered"] else square


def _of_adagrad(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor | None:
    # The sum is there before the first step.
    return state["sum"] if float(state.get("step", 0.0)) else None


def _first_of_adagrad(mean: Tensor, square: Tensor, state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor:
    return square + state["sum"] if "sum" in state else square


def _momentum_or_plain(settings: Mapping[str, Any]) -> str:
    return MOMENTUM if settings["momentum"] else PLAIN


@rule_for(torch.optim.SGD, descent=_momentum_or_plain)
def _sgd(optimizer: torch.optim.Optimizer, groups: Groups) -> OptimizerRule:
    return momentum_rule(*_shared(groups, lambda g: (g["momentum"], g["nesterov"], g["dampening"]), optimizer))


def momentum_rule(momentum: float, nesterov: bool, dampening: float) -> OptimizerRule:
    """The rule of gradient descent with momentum."""
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is at least 0 and less than 1; got {momentum}.")
    if not dampening < 1:
        raise ValueError(f"dampening is less than 1, or no gradient gets into the momentum; got {dampening}.")
    if momentum == 0:
        dampening = 0.0  # torch's SGD has no use for it without momentum
    if nesterov:
        return OptimizerRule(2 * (1 + momentum) / (1 + 2 * momentum), "eta* = 2 (1 + mu) / ((1 + 2 mu) lambda)")
    formula = "eta* = 2 (1 + mu) / lambda" if not dampening else "eta* = 2 (1 + mu) / ((1 - dampening) lambda)"
    return OptimizerRule(2 * (1 + momentum) / (1 - dampening), formula)


@rule_for(torch.optim.RMSprop, second_moment=_of_rmsprop, first_second_moment=_first_of_rmsprop)
def _rmsprop(optimizer: torch.optim.Optimizer, groups: Groups) -> OptimizerRule:
    momentum = _shared(groups, lambda g: g["momentum"], optimizer)
    return OptimizerRule(2 * (1 + momentum), "eta* = 2 (1 + mu) / lambda_P, P = sqrt(v) + eps held constant")


@rule_for(torch.optim.Adagrad, second_moment=_of_adagrad, first_second_moment=_first_of_adagrad)
def _adagrad(optimizer: torch.optim.Optimizer, groups: Groups) -> OptimizerRule:
    decay = _shared(groups, lambda g: g["lr_decay"], optimizer)
    numerator = "2 (1 + t lr_decay)" if decay else "2"
    formula = f"eta* = {numerator} / lambda_P, P = sqrt(sum) + eps held constant"
    return OptimizerRule(2 * (1 + decay * _steps(optimizer, groups)), formula)


@rule_for(torch.optim.Adam, torch.optim.AdamW, second_moment=_of_adam, descent=lambda settings: ADAM)
def _adam(optimizer: torch.optim.Optimizer, groups: Groups) -> OptimizerRule:
    beta, decoupled = _shared(groups, lambda g: (g["betas"][0], _decouples(optimizer, g)), optimizer)
    formula = "eta* = 2 (1 + beta_1) / ((1 - beta_1) lambda_P), P = sqrt(v_hat) + eps held constant"
    return OptimizerRule(2 * (1 + beta) / (1 - beta), formula, (1 + beta) / (1 - beta) if decoupled else None)


@rule_for(torch.optim.NAdam, second_moment=_of_adam)
def _nadam(optimizer: torch.optim.Optimizer, groups: Groups) -> OptimizerRule:
    settings = _shared(groups, lambda g: (g["betas"][0], _decouples(optimizer, g), g["momentum_decay"]), optimizer)
    (beta, decoupled, psi), steps = settings, _steps(optimizer, groups)
    mu_now, mu_next = (beta * (1 - 0.5 * 0.96 ** (psi * t)) for t in (steps + 1, steps + 2))
    share = (1 - mu_now) + mu_next * (1 - beta) / (1 + beta)
    formula = "eta* = 2 (1 + b) / (((1 - mu) (1 + b) + mu' (1 - b)) lambda_P), b = beta_1, "
    formula += "P = sqrt(v_hat) + eps held constant"
    return OptimizerRule(2 / share, formula, 1 / share if decoupled else None)


def _shared(groups: Groups, settings: Callable[[Mapping[str, Any]], Any], optimizer: torch.optim.Optimizer) -> Any:
    """The settings that all groups share."""
    different = {settings(group) for group in groups}
    if len(different) > 1:
        name = type(optimizer).__name__
        raise ValueError(f"The parameter groups of this {name} differ in their settings; no one bound holds.")
    return different.pop()


def _steps(optimizer: torch.optim.Optimizer, groups: Groups) -> float:
    """The number of steps made so far: the most of any parameter."""
    states = [optimizer.state.get(p, {}) for group in groups for p in group["params"]]
    return max((float(state["step"]) for state in states if "step" in state), default=0.0)


def _decouples(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    return type(optimizer) is torch.optim.AdamW or group.get("decoupled_weight_decay", False)


def kind_of_descent(optimizer: torch.optim.Optimizer | None, settings: Mapping[str, Any]) -> str:
    """PLAIN, MOMENTUM or ADAM, or "" for an optimizer without a measured share of the critical rate.

    Args:
        optimizer: None stands for gradient descent with the momentum in `settings`.
        settings: the settings of one parameter group.
    """
    registered = RULES.get(torch.optim.SGD if optimizer is None else type(optimizer))
    return "" if registered is None else registered.descent(settings)


def reads_second_moment(optimizer: torch.optim.Optimizer) -> ReadSecondMoment | None:
    """The function that reads the optimizer's second moments; None where it divides the gradient by nothing."""
    registered = RULES.get(type(optimizer))
    return None if registered is None else registered.second_moment


def has_no_moments_yet(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> bool:
    """Whether the optimizer divides by second moments and has had no gradient of any of these parameters yet."""
    # The state of an Adagrad has its sum from the start.
    states = [optimizer.state.get(p, {}) for p in parameters]
    return reads_second_moment(optimizer) is not None and not any(float(state.get("step", 0.0)) for state in states)


def coupled_decay(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> float:
    """The weight decay that the optimizer adds to the gradient of this parameter, and so to its second moment."""
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    return 0.0 if _decouples(optimizer, group) else float(group["weight_decay"])
