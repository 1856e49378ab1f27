r"""Methods that GDNP is compared with, on the same problems, with the same arguments and history.

    gd      w~ <- w~ - (step/beta) grad F(w~)                                      beta = sup |phi''| L + alpha
    agd     Nesterov's two-point form with momentum k/(k + 3), restarted where F rises
    bngd    gradient descent on (w, gamma) through the normalized parametrization, one fixed step for each
    lbfgs   scipy's L-BFGS-B

All start from zero but bngd, which needs a direction: -u, at its best length. Each iteration of gd, agd and bngd costs
one product with Z and one with Z^T; lbfgs counts iterations, and its evaluations are in `evaluations`.
bngd: eta_w = step/(beta gamma_0^2) for ||w_0||_S = 1, eta_gamma = step L/beta; w grows, so its steps shrink.
Source: the encyclopedia article compares with "regular gradient descent". It calls GD on least squares sub-linear,
which is wrong for mu > 0: gd with step 1 has the same bound (1 - mu/L)^(2t).
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from normscope.solve.iteration import Solution, gdnp
from normscope.solve.length import lowest_length
from normscope.solve.problem import Problem

Array = NDArray[np.floating]


class Method(Protocol):
    """A solver by name: `METHODS["gd"](problem, max_iter=1000, tol=1e-6, step=1.0)`."""

    def __call__(self, problem: Problem, *, max_iter: int, tol: float, step: float = 1.0) -> Solution: ...


class _Log:
    """Values and gradients in their order; `add` returns whether the tolerance is met."""

    def __init__(self, problem: Problem, tol: float) -> None:
        self.problem, self.limit = problem, tol * problem.gradient_at_zero
        self.rows: list[tuple[float, float, float]] = []

    def add(self, value: float, gradient: Array) -> bool:
        norm = float(np.linalg.norm(gradient))
        self.rows.append((value, norm, float(np.sqrt(self.problem.spectrum.inverse_square(gradient)))))
        return norm <= self.limit

    def solution(self, coef: Array, finished: bool, **more: Array) -> Solution:
        names = ("objective", "gradient_norm", "gradient_norm_S")
        history = {name: np.array(column) for name, column in zip(names, zip(*self.rows, strict=True), strict=True)}
        return Solution(coef, 1.0, history | more, "tol" if finished else "max_iter")


def gradient_descent(problem: Problem, *, max_iter: int, tol: float, step: float = 1.0) -> Solution:
    """Gradient descent with constant step `step`/beta; below `step` = 2 it cannot diverge on a convex problem."""
    log, coef, finished = _Log(problem, tol), np.zeros(len(problem.u)), False
    for t in range(max_iter + 1):
        value, gradient = problem.value_and_gradient(coef)
        finished = log.add(value, gradient)
        if finished or t == max_iter or not np.isfinite(value):
            break
        coef = coef - (step / problem.smoothness) * gradient
    return log.solution(coef, finished)


def accelerated(problem: Problem, *, max_iter: int, tol: float, step: float = 1.0) -> Solution:
    """Nesterov's method; values and gradients are recorded at the extrapolated points, where they are known anyway."""
    log, finished = _Log(problem, tol), False
    point = previous = np.zeros(len(problem.u))
    since, last = 0, np.inf
    for t in range(max_iter + 1):
        value, gradient = problem.value_and_gradient(point)
        finished = log.add(value, gradient)
        if finished or t == max_iter or not np.isfinite(value):
            break
        since = 0 if value > last else since + 1
        last = value
        coef = point - (step / problem.smoothness) * gradient
        point, previous = coef + since / (since + 3.0) * (coef - previous), coef
    return log.solution(point, finished)


def batch_norm_descent(problem: Problem, *, max_iter: int, tol: float, step: float = 1.0) -> Solution:
    """Gradient descent on w and gamma together; only the first length is a minimum along its ray."""
    ray = problem.ray(-problem.u)
    lowest = lowest_length(ray.at, convex=problem.convex, reach=problem.reach)
    gamma = lowest.gamma if lowest is not None and lowest.gamma else 1.0
    eta_w = step / (problem.smoothness * gamma**2)
    eta_gamma = step * problem.spectrum.largest / problem.smoothness
    log, finished, size, lengths = _Log(problem, tol), False, 1.0, []
    for t in range(max_iter + 1):
        point = ray.at(gamma)
        pull, value = point.pull(), point.value
        finished = log.add(value, pull.gradient)
        lengths.append(gamma)
        if finished or t == max_iter or not np.isfinite(value):
            break
        slope = float(ray.w @ pull.gradient)
        direction = -(eta_w * gamma / size**2) * (pull.gradient - slope * pull.s_w)
        moved = size * float(np.linalg.norm(ray.w + direction))
        ray = ray.line(direction)(1.0)
        size = moved / float(np.linalg.norm(ray.w))
        gamma -= eta_gamma * slope
    return log.solution(gamma * ray.w, finished, gamma=np.array(lengths))


def limited_memory(problem: Problem, *, max_iter: int, tol: float, step: float = 1.0) -> Solution:
    """scipy's L-BFGS-B, which chooses its own steps, so that `step` must be 1."""
    if step != 1.0:
        raise ValueError(f"L-BFGS chooses its own steps; step must be 1, got {step!r}.")
    log = _Log(problem, tol)
    origin = np.zeros(len(problem.u))
    log.add(*problem.value_and_gradient(origin))
    last: list[tuple[Array, float, Array]] = []
    count = 0

    def counted(coef: Array) -> tuple[float, Array]:
        nonlocal count
        count += 1
        last[:] = [(coef.copy(), *problem.value_and_gradient(coef))]
        return last[0][1:]

    def each(intermediate_result: object) -> None:
        # An iterate is the last point evaluated, so that recording it costs nothing.
        coef: Array = intermediate_result.x  # type: ignore[attr-defined]
        known = last[0][1:] if np.array_equal(last[0][0], coef) else problem.value_and_gradient(coef)
        if log.add(*known):
            raise StopIteration

    options = {"maxiter": max_iter, "ftol": 0.0, "gtol": 0.0, "maxfun": 20 * max_iter}
    result = minimize(counted, origin, jac=True, method="L-BFGS-B", callback=each, options=options)
    return log.solution(result.x, log.rows[-1][1] <= log.limit, evaluations=np.array(count))


def _gdnp(problem: Problem, *, max_iter: int, tol: float, step: float = 1.0) -> Solution:
    return gdnp(problem, max_iter=max_iter, tol=tol, step=step)


METHODS: dict[str, Method] = {
    "gdnp": _gdnp,
    "gd": gradient_descent,
    "agd": accelerated,
    "bngd": batch_norm_descent,
    "lbfgs": limited_memory,
}
