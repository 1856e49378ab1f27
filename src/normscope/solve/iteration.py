r"""Gradient descent in normalized parametrization: the direction by a gradient step, the length by bisection.

    w_{t+1}     = w_t - s_t grad_w f(w_t, gamma_t),      s_t = -||w_t||_S^3 / (L gamma_t h_t)
    grad_w f    = (gamma/||w||_S) P grad f(w~),          P = I - S w w^T / ||w||_S^2
    h_t         = c1 (u^T w_t),                          c1 = E phi' - E phi'' (u^T w~)
    gamma_0     = the lowest minimum of f(w_0, .);       gamma_{t+1} = the minimum of f(w_{t+1}, .) downhill of gamma_t

With ||w||_S = 1, kept by rescaling, this is w+ = w + P grad f / (L h). A ridge (alpha/2)||w~||^2 joins as a curvature:

    w+ = w + P grad F / delta,      delta = L (h + alpha gamma ||w||^2) - alpha gamma

since -h/gamma = E phi'' at the best length of a Gaussian problem: the step is 1/(gamma (L E phi'' + alpha)).
For least squares h = 2 u^T w and the iteration is gradient descent on rho(w) = -(u^T w)^2 / ||w||_S^2 with
eta = ||w||_S^2 / (2 L |rho|).

Differs from the source: it prints (u^T w)^2 in the second term of h, without the factor gamma/||w||_S; with that h the
bound fails (sigmoid: in most steps). Off the Gaussian model h can have the wrong sign or be too small, so that f rises:
`safeguard` then takes the curvature along the ray for h and halves the step until f falls (Armijo, 1e-4).
Source: seed 003, learning halfspaces (Kohler et al. 2018, Algorithm 1).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.solve.problem import Problem, Pull, Ray

Array = NDArray[np.floating]

# The length where none is finite, in units of the margins' root mean square: sigmoid(-8) = 3e-4.
_SATURATED = 8.0
# The slope along the ray may be this share of the gradient across it (both in the S^-1 norm, from below); 0.1 takes as
# many iterations and a tenth more evaluations.
_LENGTH = 0.3
_HALVINGS = 40
_ARMIJO = 1e-4


@dataclass(frozen=True)
class Solution:
    """What a solver found.

    direction, gamma: coef = gamma direction, ||direction||_S = 1 (a baseline without the split: gamma = 1).
    history: plain arrays, one entry an iterate, the start included.
    reason: why it ended: "tol", "max_iter", "no decrease" (rounding), "h = 0" or "no finite length".
    """

    direction: Array
    gamma: float
    history: dict[str, Array]
    reason: str

    @property
    def coef(self) -> Array:
        return self.gamma * self.direction

    @property
    def n_iter(self) -> int:
        return len(self.history["objective"]) - 1

    @property
    def converged(self) -> bool:
        return self.reason in ("tol", "no decrease", "h = 0")


def gdnp(
    problem: Problem,
    start: Array | None = None,
    *,
    length: float | None = None,
    max_iter: int = 1000,
    tol: float = 1e-6,
    step: float = 1.0,
    safeguard: bool = True,
    callback: Callable[[Ray, float, Pull], None] | None = None,
) -> Solution:
    """Runs the iteration from `start` (default -u) until ||grad F|| <= tol ||grad F(0)||.

    Args:
        length: gamma to go downhill from; None looks for the lowest minimum along the start.
        step: multiplies the closed-form step; 1 is the theory's.
        safeguard: False for the theory's own runs, which go on with the last gamma where no finite length exists: the
            direction does not need it.
        callback: sees every iterate; `rates.identities` as a callback is the debug mode.

    Raises a ValueError where u^T start = 0: rho has a maximum there, its gradient vanishes, and f is flat at length 0.
    """
    ray = problem.ray(-problem.u if start is None else start)
    if ray.slope(0.0) == 0.0:
        raise ValueError(
            "The start must have rho(w0) != 0; got u^T w0 = 0, a maximum of rho with zero gradient. "
            "Start from -u, the default."
        )
    found_length = ray.first_length() if length is None else ray.next_length(length, 0.1 * abs(length), 0.0)
    reason = "max_iter" if found_length is not None else "no finite length"
    gamma = found_length if found_length is not None else length or -_SATURATED * float(np.sign(ray.correlation))
    rows: list[tuple[float, ...]] = []
    taken, width = 1.0, 0.1 * abs(gamma)
    for t in range(max_iter + 1):
        pull = ray.pull(gamma)
        value = ray.value(gamma)
        slope = float(ray.w @ pull.gradient)
        norm = float(np.linalg.norm(pull.gradient))
        inverse = problem.spectrum.inverse_square(pull.gradient)
        rows.append((value, -(ray.correlation**2), gamma, pull.c1, slope, norm, np.sqrt(inverse), taken))
        if callback is not None:
            callback(ray, gamma, pull)
        if norm <= tol * problem.gradient_at_zero:
            reason = "tol"
        if t == max_iter or reason == "tol" or (safeguard and reason != "max_iter"):
            break
        across = pull.gradient - slope * pull.s_w
        delta = _denominator(pull, gamma, safeguard)
        if delta == 0.0:
            reason = "h = 0"
            break
        direction = across * (step / delta)
        line = ray.line(direction)
        if safeguard:
            fall = gamma * float(across @ direction)
            found = _backtrack(line, gamma, value, fall, min(1.0, 2.0 * taken))
            if found is None:
                reason = "no decrease"
                break
            ray, taken = found
        else:
            ray = line(1.0)
        small = _LENGTH * float(np.linalg.norm(across)) / np.sqrt(problem.spectrum.largest) if safeguard else 0.0
        longer = ray.next_length(gamma, min(width, 0.5 * abs(gamma)), small)
        if longer is None:
            reason = "no finite length"
        elif not safeguard or ray.value(longer) <= ray.value(gamma):
            width, gamma = 2.0 * abs(longer - gamma), longer
    names = ("objective", "rho", "gamma", "c1", "slope", "gradient_norm", "gradient_norm_S", "step")
    history = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    return Solution(ray.w, gamma, history | problem.rate_history(history), reason)


def _denominator(pull: Pull, gamma: float, safeguard: bool) -> float:
    if safeguard and gamma * pull.denominator >= 0.0:
        return pull.fallback
    return pull.denominator


def _backtrack(
    line: Callable[[float], Ray], gamma: float, value: float, fall: float, first: float
) -> tuple[Ray, float] | None:
    """Halves `first` until f has fallen at the old length; the next length is taken if it is lower still.

    None at rounding.
    """
    floor = 4.0 * np.finfo(np.float64).eps * abs(value)
    taken = first
    for _ in range(_HALVINGS):
        ray = line(taken)
        if ray.value(gamma) <= value + _ARMIJO * taken * fall + floor:
            return ray, taken
        taken *= 0.5
    return None
