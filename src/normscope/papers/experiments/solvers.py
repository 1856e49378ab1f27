"""Gradient descent in normalized parametrization on three problems, beside the bounds of the theorems."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.papers.experiment import Curves, Experiment, Place

_Array = NDArray[np.float64]


def _second_moment(d: int, condition: float, rng: np.random.Generator) -> _Array:
    """A random matrix with eigenvalues from 1/condition to 1, both ends included."""
    q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    values = np.exp(-np.log(condition) * np.concatenate([[0.0, 1.0], rng.random(d - 2)]))
    return (q * values) @ q.T


def _moments(d: int, condition: float, rng: np.random.Generator) -> tuple[_Array, _Array]:
    """(u, S) of a Gaussian z with u^T S^-1 u = 0.6."""
    s = _second_moment(d, condition, rng)
    u = np.linalg.cholesky(s) @ rng.standard_normal(d)
    return u * np.sqrt(0.6 / (u @ np.linalg.solve(s, u))), s


def least_squares(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """Gaps of the normalized iteration and of gradient descent from the same first point, and the promised bound."""
    from normscope.solve import Design, LeastSquares, gdnp

    rng = np.random.default_rng(seed)
    curves: Curves = {"gap": [], "descent": [], "bound": []}
    for number in range(settings["problems"]):
        place.tick(number)
        d = int(rng.integers(2, 20))
        s = _second_moment(max(d, 2), 10 ** rng.uniform(0.3, 3), rng)
        x = rng.standard_normal((300, len(s))) @ np.linalg.cholesky(s).T
        y = x @ rng.standard_normal(len(s)) + rng.standard_normal(300)
        problem = LeastSquares(Design(x), y)
        start_point = rng.standard_normal(len(s))
        history = gdnp(problem, start_point, max_iter=settings["steps"], tol=0.0, safeguard=False).history
        first = history["gap"][0]
        steps = np.arange(settings["steps"] + 1)
        ray = problem.ray(start_point)
        coef, descent = -ray.correlation * ray.w, []
        best = problem.energy + problem.best_rho
        for _ in steps:
            value, gradient = problem.value_and_gradient(coef)
            descent.append((value - best) / first)
            coef = coef - gradient / (2 * problem.spectrum.largest)
        gap = history["gap"] / first
        # An iteration that ended at rounding keeps its last gap.
        curves["gap"].append(list(np.concatenate([gap, np.full(len(steps) - len(gap), gap[-1])])))
        curves["descent"].append(descent)
        curves["bound"].append(list(problem.spectrum.rate ** (2.0 * steps)))
    return curves


def halfspaces(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """Gaps of the direction for two losses, with the step as corrected and as printed, beside the bound."""
    from normscope.solve import GaussianHalfspace, gdnp, named_loss

    rng = np.random.default_rng(seed)
    curves: Curves = {}
    u, s = _moments(settings["d"], 3.0, rng)
    start_point = rng.standard_normal(settings["d"])
    for loss in ("softplus", "sigmoid"):
        for form in ("corrected", "printed"):
            place.tick(0)
            problem = GaussianHalfspace(u, s, named_loss(loss), printed=form == "printed")
            gap = gdnp(problem, start_point, max_iter=settings["steps"], tol=0.0, safeguard=False).history["gap"]
            curves[f"{loss}, {form}"] = list(gap / gap[0])
    curves["bound"] = list(problem.spectrum.rate ** (2.0 * np.arange(settings["steps"] + 1)))
    return curves


def network(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """Two tanh units: the gap of one while the other is on the line; and where a joint minimum lies."""
    from scipy.optimize import minimize

    from normscope.solve import Design, gaussian_cloud, named_loss
    from normscope.solve.second_moment import second_moment
    from normscope.solve.tanh_network import TanhNetwork

    rng = np.random.default_rng(seed)
    u, s = np.array([0.6, 0.3, -0.2]), np.array([[1.0, 0.3, 0.0], [0.3, 0.8, 0.1], [0.0, 0.1, 0.5]])
    s = s + np.outer(u, u)
    line = np.linalg.solve(s, u)
    z, weights = gaussian_cloud(u, s, nodes=settings["nodes"])
    design = Design(z, weights)
    spectrum = second_moment(design)[1]
    theta = np.array([1.0, 0.7])

    def build(w: _Array) -> TanhNetwork:
        return TanhNetwork(design, named_loss("softplus"), theta, w, alpha=0.0, spectrum=spectrum)

    solution = build(np.stack([rng.standard_normal(3), -line])).visit(
        0, steps=settings["steps"], search=True, safeguard=False
    )
    if solution is None:
        raise ArithmeticError(f"The unit has no finite length along its ray with {settings['nodes']} nodes; take more.")
    gap = solution.history["rho"] + float(u @ line)

    def value(flat: _Array) -> tuple[float, _Array]:
        net = build(flat.reshape(2, 3))
        return net.value(), np.asarray(net.gradient().ravel(), dtype=np.float64)

    aligned = minimize(lambda c: value(np.outer(c, line).ravel())[0], [-2.0, -2.0], method="BFGS").x
    best_aligned = np.outer(aligned, line)
    place.tick(0)
    start_point = best_aligned + 0.3 * rng.standard_normal((2, 3))
    joint = minimize(value, start_point.ravel(), jac=True, method="BFGS", options={"gtol": 1e-9})
    cosines = [float(abs(u @ w) / np.sqrt((w @ s @ w) * (u @ line))) for w in joint.x.reshape(2, 3)]
    return {
        "gap": list(gap / gap[0]),
        "bound": list(spectrum.rate ** (2.0 * np.arange(len(gap)))),
        "cosines": cosines,
        "gradient": float(np.linalg.norm(value(joint.x)[1])),
        "below_aligned": float(value(best_aligned.ravel())[0] - joint.fun),
    }


def _run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    return {"least squares": least_squares, "halfspaces": halfspaces, "network": network}[settings["problem"]](
        settings, seed, place
    )


SOLVERS = Experiment(
    name="convergence",
    what="gradient descent in normalized parametrization on three problems, beside the theorems' bounds",
    settings={
        "paper": {"problems": 20, "steps": 60, "d": 50, "nodes": 20},
        "small": {"problems": 5, "steps": 40, "d": 20, "nodes": 20},
    },
    cells={name: {"problem": name} for name in ("least squares", "halfspaces", "network")},
    run=_run,
    seconds={("paper", "cpu"): 8.0, ("small", "cpu"): 3.0, ("paper", "cuda"): 8.0, ("small", "cuda"): 3.0},
)
