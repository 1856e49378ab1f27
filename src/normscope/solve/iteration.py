r"""Gradient descent in normalized parametrization: the direction by a gradient step, the length by bisection.

    w_{t+1}     = w_t - s_t grad_w f(w_t, gamma_t),      s_t = -||w_t||_S^3 / (L gamma_t h_t)
    grad_w f    = (gamma/||w||_S) P grad f(w~),          P = I - S w w^T / ||w||_S^2
    h_t         = c1 (u^T w_t),                          c1 = E phi' - E phi'' (u^T w~)
    gamma_t     = the lowest minimum of f(w_t, .):       the lowest root of d_gamma f that goes from minus to plus

With ||w||_S = 1, kept by rescaling, this is w+ = w + P grad f / (L h). A ridge (alpha/2)||w~||^2 joins as a curvature:

    w+ = w + P grad F / delta,      delta = L (h + alpha gamma ||w||^2) - alpha gamma

since -h/gamma = E phi'' at the best length of a Gaussian problem: the step is 1/(gamma (L E phi'' + alpha)).
For least squares h = 2 u^T w and the iteration is gradient descent on rho(w) = -(u^T w)^2 / ||w||_S^2 with
eta = ||w||_S^2 / (2 L |rho|).

**The lowest minimum.** Where f has one minimum along a ray (softplus, least squares), the iteration goes downhill from
the last length. Where f may have several (sigmoid, hidden units), the whole ray is searched at the start, and again
wherever the gradient is small enough to end; in between, the minimum downhill from the last length is followed. The
result has the lowest minimum along its direction. A search at every step took 16 to 26 times the evaluations on 400
heavy-tailed problems, and ended higher (36) more often than lower (16). A search that finds a lower minimum is an
iterate with `step` 0.

**No finite length.** Where d_gamma f never turns (separable data without a ridge; sigmoid under the Gaussian model) the
directions go on at the last length until the gradient across the ray is small, and `reason` says so.

**L too small.** With a true L a step lowers rho by ||u - (u^T w) S w||^2 / L at least (the descent lemma). Where L is
an estimate (d > 128) and rho falls by less than half of that, L was too small: the step is taken again with L doubled,
and L stays doubled; `step` in the history is then 1/2, 1/4, ...

Differs from the source: it prints (u^T w)^2 in the second term of h, without the factor gamma/||w||_S; with that h the
bound fails (sigmoid: in most steps). Off the Gaussian model h can have the wrong sign or be too small, so that f rises:
`safeguard` then takes the curvature along the ray for h and halves the step until f falls (Armijo, 1e-4).
Source: Kohler et al. 2018, Algorithm 1; the encyclopedia article, learning halfspaces.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.solve.length import lowest_length, next_length
from normscope.solve.problem import Point, Problem, Pull, Ray
from normscope.solve.rates import identities

Array = NDArray[np.floating]

# The length taken where no length is finite, in units of the margins' root mean square: sigmoid(-8) = 3e-4.
_SATURATED = 8.0
# The slope along the ray may be this share of the gradient across it (both in the S^-1 norm, from below); 0.1 takes as
# many iterations and a tenth more evaluations.
_LENGTH = 0.3
_HALVINGS = 40
_ARMIJO = 1e-4
# In units of rounding: a smaller fall of rho cannot be distinguished from zero.
_VISIBLE = 1e3


@dataclass(frozen=True)
class Solution:
    """The solution that a solver found.

    Attributes:
        direction: the direction of the weights, with ||direction||_S = 1; a baseline without the split has the weights.
        gamma: the length: the weights are gamma times direction. A baseline without the split has 1.
        history: plain arrays, one entry for each iterate, the start included.
        reason: why the iteration ended: "tol", "max_iter", "no decrease" (rounding), "h = 0" or "no finite length".
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


def gdnp(
    problem: Problem,
    start: Array | None = None,
    *,
    length: float | None = None,
    max_iter: int = 1000,
    tol: float = 1e-6,
    step: float = 1.0,
    safeguard: bool = True,
    debug: bool = False,
    callback: Callable[[Ray, float, Pull], None] | None = None,
) -> Solution:
    """Runs the iteration from `start` (default -u) until ||grad F|| <= tol ||grad F(0)||.

    Args:
        problem: `LeastSquares`, `Halfspace` or `GaussianHalfspace`.
        start: first direction; -u by default.
        length: gamma to go downhill from; None searches the ray for the lowest minimum.
        max_iter: most iterations.
        tol: largest gradient norm at the end, over the norm at w = 0.
        step: multiplies the closed-form step; 1 is the theory's.
        safeguard: False runs the theorem's own iteration, without halved steps.
        debug: check the identities of `rates.identities` on every iterate; an ArithmeticError names one that fails.
        callback: called with every iterate.

    Raises a ValueError where u^T start = 0: rho has a maximum there, its gradient vanishes, and f is flat at length 0.

    Returns:
        A `Solution`: the coefficients and the history.
    """
    watchers = ([identities(problem)] if debug else []) + ([callback] if callback else [])
    ray, limit = problem.ray(-problem.u if start is None else start), tol * problem.gradient_at_zero
    point, endless = _first_point(problem, ray, length)
    rows: list[tuple[float, ...]] = []
    share = taken = 1.0
    reason = "max_iter"
    for t in range(max_iter + 1):
        pull = point.pull()
        slope, norm = float(ray.w @ pull.gradient), float(np.linalg.norm(pull.gradient))
        across = pull.gradient - slope * pull.s_w
        inverse = problem.spectrum.inverse_square(pull.gradient)
        rows.append((point.value, -(ray.correlation**2), point.gamma, pull.c1, slope, norm, np.sqrt(inverse), taken))
        for watcher in watchers:
            watcher(ray, point.gamma, pull)
        left = float(np.linalg.norm(across))
        if (left if endless else norm) <= limit:
            lower = None if endless or length is not None or t == max_iter else _lower(problem, ray, point)
            if lower is None:
                reason = "tol"
                break
            point, taken = lower, 0.0
            continue
        delta = _denominator(pull, point.gamma, safeguard)
        if t == max_iter or delta == 0.0:
            reason = "max_iter" if t == max_iter else "h = 0"
            break
        direction = across * (step / delta)
        if safeguard:
            accepted = _backtrack(ray.line(direction), point, float(across @ direction), min(1.0, 2.0 * share))
        else:
            accepted = _descend(problem, ray, point, pull, direction, share)
        if accepted is None:
            reason = "no decrease"
            break
        ray, before, share = accepted
        small = _LENGTH * left / np.sqrt(problem.spectrum.largest) if safeguard else 0.0
        after = next_length(ray.at, before, small=small, reach=problem.reach)
        endless = after is None
        point = before if after is None or (safeguard and after.value > before.value) else after
        taken = share
    names = ("objective", "rho", "gamma", "c1", "slope", "gradient_norm", "gradient_norm_S", "step")
    history = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    reason = "no finite length" if endless else reason
    return Solution(ray.w, point.gamma, history | problem.rate_history(history), reason)


def _first_point(problem: Problem, ray: Ray, length: float | None) -> tuple[Point, bool]:
    """The point where the iteration begins on the start's ray, and whether that ray has no finite length."""
    if ray.at(0.0).slope == 0.0:
        raise ValueError(
            "The start must have rho(w0) != 0; got u^T w0 = 0, a maximum of rho with zero gradient. "
            "Start from -u, the default."
        )
    if length is None:
        minimum = lowest_length(ray.at, convex=problem.convex, reach=problem.reach)
        length = -_SATURATED * float(np.sign(ray.correlation))
    else:
        minimum = next_length(ray.at, ray.at(length), reach=problem.reach)
    return (ray.at(length), True) if minimum is None else (minimum, False)


def _lower(problem: Problem, ray: Ray, point: Point) -> Point | None:
    """Another minimum along the ray, lower than the point's own, where f may have one."""
    if problem.convex:
        return None
    lowest = lowest_length(ray.at, convex=False, reach=problem.reach)
    # Twice the fall that Newton's method predicts from the point to its own minimum.
    left = point.slope**2 / point.bend if point.bend > 0.0 else 0.0
    return lowest if lowest is not None and lowest.value < point.value - left - 1e-9 * abs(point.value) else None


def _denominator(pull: Pull, gamma: float, safeguard: bool) -> float:
    if safeguard and gamma * pull.denominator >= 0.0:
        return pull.fallback
    return pull.denominator


def _descend(
    problem: Problem, ray: Ray, point: Point, pull: Pull, direction: Array, share: float
) -> tuple[Ray, Point, float]:
    """The theory's step times `share`; `share` is halved for good where rho shows that an estimated L is too small."""
    line = ray.line(direction)
    stepped = line(share)
    if problem.spectrum.certain:
        return stepped, stepped.at(point.gamma), share
    steepness = float(np.sum((problem.u - ray.correlation * pull.s_w) ** 2))
    floor = _VISIBLE * problem.rounding * ray.correlation**2
    promised = share * steepness / problem.spectrum.largest
    while promised > floor and stepped.correlation**2 - ray.correlation**2 < 0.5 * promised:
        share, promised = 0.5 * share, 0.5 * promised
        stepped = line(share)
    return stepped, stepped.at(point.gamma), share


def _backtrack(
    line: Callable[[float], Ray], point: Point, across: float, first: float
) -> tuple[Ray, Point, float] | None:
    """Halve `first` until f has fallen at the old length; None where rounding ends the search.

    The caller takes the next length if f is lower still there.
    """
    floor = 4.0 * np.finfo(np.float64).eps * abs(point.value)
    taken = first
    for _ in range(_HALVINGS):
        ray = line(taken)
        before = ray.at(point.gamma)
        if before.value <= point.value + _ARMIJO * taken * point.gamma * across + floor:
            return ray, before, taken
        taken *= 0.5
    return None
