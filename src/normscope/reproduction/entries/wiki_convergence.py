"""The encyclopedia article, "Linear convergence": least squares, halfspaces, a network with one hidden layer."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.reproduction.curves import each
from normscope.reproduction.entry import Entry, Line, Panel, Part, Runs, Statement
from normscope.reproduction.experiment import Curves, Experiment, Place

_Array = NDArray[np.float64]
# In units of the first gap: both sides are sums of some hundred products.
FLOOR = 1e-12


def _second_moment(d: int, condition: float, rng: np.random.Generator) -> _Array:
    """Eigenvalues from 1/condition to 1, both ends taken."""
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
    found: Curves = {"gap": [], "descent": [], "bound": []}
    for number in range(settings["problems"]):
        place.tick(number)
        d = int(rng.integers(2, 20))
        s = _second_moment(max(d, 2), 10 ** rng.uniform(0.3, 3), rng)
        x = rng.standard_normal((300, len(s))) @ np.linalg.cholesky(s).T
        y = x @ rng.standard_normal(len(s)) + rng.standard_normal(300)
        problem = LeastSquares(Design(x), y)
        start = rng.standard_normal(len(s))
        history = gdnp(problem, start, max_iter=settings["steps"], tol=0.0, safeguard=False).history
        first = history["gap"][0]
        steps = np.arange(settings["steps"] + 1)
        ray = problem.ray(start)
        coef, descent = -ray.correlation * ray.w, []
        best = problem.energy + problem.best_rho
        for _ in steps:
            value, gradient = problem.value_and_gradient(coef)
            descent.append((value - best) / first)
            coef = coef - gradient / (2 * problem.spectrum.largest)
        gap = history["gap"] / first
        # An iteration that ended on rounding stays where it is.
        found["gap"].append(list(np.concatenate([gap, np.full(len(steps) - len(gap), gap[-1])])))
        found["descent"].append(descent)
        found["bound"].append(list(problem.spectrum.rate ** (2.0 * steps)))
    return found


def halfspaces(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """Gaps of the direction for two losses, with the step as corrected and as printed, beside the bound."""
    from normscope.solve import GaussianHalfspace, gdnp, named_loss

    rng = np.random.default_rng(seed)
    found: Curves = {}
    u, s = _moments(settings["d"], 3.0, rng)
    start = rng.standard_normal(settings["d"])
    for loss in ("softplus", "sigmoid"):
        for form in ("corrected", "printed"):
            place.tick(0)
            problem = GaussianHalfspace(u, s, named_loss(loss), printed=form == "printed")
            gap = gdnp(problem, start, max_iter=settings["steps"], tol=0.0, safeguard=False).history["gap"]
            found[f"{loss}, {form}"] = list(gap / gap[0])
    found["bound"] = list(problem.spectrum.rate ** (2.0 * np.arange(settings["steps"] + 1)))
    return found


def network(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """Two tanh units: the gap of one while the other is on the line; and where a joint minimum lies."""
    from scipy.optimize import minimize

    from normscope.solve import Design, gaussian_cloud, named_loss
    from normscope.solve.network import Network
    from normscope.solve.spectrum import second_moment

    rng = np.random.default_rng(seed)
    u, s = np.array([0.6, 0.3, -0.2]), np.array([[1.0, 0.3, 0.0], [0.3, 0.8, 0.1], [0.0, 0.1, 0.5]])
    s = s + np.outer(u, u)
    line = np.linalg.solve(s, u)
    z, weights = gaussian_cloud(u, s, nodes=settings["nodes"])
    design = Design(z, weights)
    spectrum = second_moment(design)[1]
    theta = np.array([1.0, 0.7])

    def build(w: _Array) -> Network:
        return Network(design, named_loss("softplus"), theta, w, alpha=0.0, spectrum=spectrum)

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
    start = best_aligned + 0.3 * rng.standard_normal((2, 3))
    joint = minimize(value, start.ravel(), jac=True, method="BFGS", options={"gtol": 1e-9})
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


def _kept(runs: Runs, name: str) -> tuple[int, int]:
    """On how many of the problems the linear bound holds at every step."""
    held = []
    for curves in runs.of("least squares").values():
        for gap, bound in zip(curves[name], curves["bound"], strict=True):
            held.append(all(g <= b * (1 + 1e-5) + FLOOR for g, b in zip(gap, bound, strict=True)))
    return sum(held), len(held)


def _least_squares(runs: Runs) -> list[Part]:
    held, of = _kept(runs, "gap")
    return [Part(f"the bound (1 - mu/L)^(2t) holds at every step on {held} of {of} problems", held == of)]


def _sublinear(runs: Runs) -> list[Part]:
    held, of = _kept(runs, "descent")
    words = f"plain gradient descent keeps the linear bound (1 - mu/L)^(2t) on {held} of {of} problems"
    return [Part(words, held == 0)]


def _halfspace(runs: Runs, form: str) -> list[Part]:
    parts = []
    for loss in ("softplus", "sigmoid"):
        broken = []
        for curves in runs.of("halfspaces").values():
            gap, bound = np.array(curves[f"{loss}, {form}"]), np.array(curves["bound"])
            broken.append(float(np.mean(gap[1:] > bound[1 : len(gap)] * (1 + 1e-5) + FLOOR)))
        parts.append(Part(f"{loss}: the bound is broken in {each(broken, '.0%')} of the steps", max(broken) == 0))
    return parts


def _unit(runs: Runs) -> list[Part]:
    broken = []
    for curves in runs.of("network").values():
        gap, bound = np.array(curves["gap"]), np.array(curves["bound"])
        broken.append(float(np.mean(gap > bound * (1 + 1e-5) + 1e-8)))
    return [Part(f"the bound is broken in {each(broken, '.0%')} of the steps", max(broken) == 0)]


def _aligned(runs: Runs) -> list[Part]:
    rows = list(runs.of("network").values())
    cosines = [min(one["cosines"]) for one in rows]
    below = [one["below_aligned"] for one in rows]
    words = f"joint minima (gradient {each([one['gradient'] for one in rows], '.0e')}) have cosines of "
    return [
        Part(
            f"{words}{each(cosines, '.3f')}, and lie {each(below, '.2e')} below the best aligned point",
            min(cosines) > 0.9999,
        )
    ]


def _panels(runs: Runs) -> list[Panel]:
    found = runs.of("least squares")
    panels = []
    if found:
        one = found[min(found)]
        steps = list(range(len(one["gap"][0])))
        lines = [
            Line(name, steps, one[key][0])
            for name, key in (("normalized", "gap"), ("gradient descent", "descent"), ("bound", "bound"))
        ]
        panels.append(Panel("Least squares, first problem", "step", "gap / first gap", lines, log_y=True))
    found = runs.of("halfspaces")
    if found:
        one = found[min(found)]
        # Below rounding a gap is zero or not by chance.
        lines = [Line(name, list(range(len(one[name]))), list(np.maximum(one[name], 1e-16))) for name in one]
        panels.append(Panel("Halfspaces, direction, seed 0", "step", "gap / first gap", lines, log_y=True))
    found = runs.of("network")
    if found:
        one = found[min(found)]
        lines = [Line(name, list(range(len(one[name]))), one[name]) for name in ("gap", "bound")]
        panels.append(Panel("One unit of a network, seed 0", "step", "gap / first gap", lines, log_y=True))
    return panels


ENTRY = Entry(
    name="convergence",
    title="Linear convergence in normalized parametrization",
    source='Encyclopedia article "Batch normalization", Linear convergence; Kohler et al. 2018',
    origin="random least squares of 2 to 19 features, L/mu 2 to 1000; Gaussian halfspaces of 50 features, L/mu = 3; "
    "two tanh units in three dimensions, softplus",
    needs={SOLVERS: ("least squares", "halfspaces", "network")},
    statements=(
        Statement(
            "least-squares",
            "Least squares with BatchNorm converge linearly: rho - rho* <= (1 - mu/L)^(2t) of its first value.",
            "On every random problem, at every step.",
            _least_squares,
            n=5,
            exact=True,
            cells=("least squares",),
        ),
        Statement(
            "sub-linear",
            "Regular gradient descent on least squares converges only sub-linearly.",
            "Gradient descent with step 1/(2L) breaks the linear bound (1 - mu/L)^(2t) on every problem.",
            _sublinear,
            n=5,
            exact=True,
            cells=("least squares",),
            found="For mu > 0 it has the same linear guarantee. docs/errata.md, E-DEC-3.",
        ),
        Statement(
            "halfspaces-printed",
            "Halfspaces converge linearly with the step size as printed.",
            "The direction's gap keeps (1 - mu/L)^(2t) at every step, softplus and sigmoid.",
            lambda runs: _halfspace(runs, "printed"),
            n=5,
            exact=True,
            cells=("halfspaces",),
            found="The printed h lacks a factor gamma/|w|_S; with it the theorem holds. docs/errata.md, E-DEC-6.",
        ),
        Statement(
            "halfspaces",
            "Halfspaces converge linearly with the corrected step size.",
            "The direction's gap keeps (1 - mu/L)^(2t) at every step, softplus and sigmoid.",
            lambda runs: _halfspace(runs, "corrected"),
            n=5,
            exact=True,
            cells=("halfspaces",),
        ),
        Statement(
            "network-unit",
            "A hidden unit converges linearly while the others are on the line of S^-1 u.",
            "Its gap keeps (1 - mu/L)^(2t) at every step (quadrature good to 1e-8).",
            _unit,
            n=5,
            exact=True,
            cells=("network",),
        ),
        Statement(
            "network-aligned",
            "All hidden units are on one line at every critical point.",
            "Cosines of the units with S^-1 u at joint minima above 0.9999.",
            _aligned,
            n=5,
            exact=True,
            cells=("network",),
            found="Joint minima lie off the line and below the best aligned point, a saddle. docs/errata.md, E-DEC-9.",
        ),
    ),
    panels=_panels,
)
