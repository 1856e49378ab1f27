"""GDNP against the products it consists of, and against other solvers, from one run.

    python benchmarks/solve.py [--rows 200000] [--out benchmarks/results/solve-cpu.json]
    python benchmarks/performance_page.py > docs/evidence/performance.md

Cost: the time of one direction step over the time of X w and X^T r alone on the same X, taken in turns, the median over
rounds; and the parts of a step: the product with Z, the two columns through Z^T, and evaluations along the ray (one
exponential an entry for value, slope, bend and phi'). Race: iterations and seconds to a gap of 1e-6 (least squares: of
the target's variance) in the loss, counted from data in memory, L included; for a method that misses the gap within its
cap, the gap reached is stored. scikit-learn's solvers run at tolerances 1e-3, 1e-4, ... until the gap is met; the first
that meets it is timed. Memory: the peak that NumPy allocates beside X during `fit`. About ten minutes on one thread.
"""

import argparse
import json
import os
import statistics
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from threadpoolctl import threadpool_info

from normscope.results.environment import environment
from normscope.solve import Design, GDNPClassifier, GDNPRegressor, Halfspace, LeastSquares, gdnp, named_loss
from normscope.solve.baselines import METHODS
from normscope.solve.comparison import iterations_to

ALPHA, GAP = 1e-4, 1e-6


def data(n: int, d: int, condition: float, dtype: str = "float64", seed: int = 0) -> tuple[Any, Any, Any]:
    """x with independent columns of variances 1/condition to 1, a numeric target, and labels -1 and 1."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d), dtype=dtype)
    x *= np.sqrt(np.geomspace(1.0, 1.0 / condition, d)).astype(dtype)
    score = (x @ (rng.standard_normal(d) * 3 / np.sqrt(d)).astype(dtype)).astype(np.float64)
    y = score + rng.standard_normal(n)
    return x, y, np.where(rng.random(n) < 1 / (1 + np.exp(-2 * score)), 1.0, -1.0)


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def median_ms(run: Callable[[], object], rounds: int) -> float:
    return 1e3 * statistics.median(seconds(run) for _ in range(rounds))


def step_cost(n: int, d: int, dtype: str, rounds: int = 3, steps: int = 6) -> dict[str, float]:
    """The bare products in ms, a halfspace and a least-squares step as multiples of them, and the halfspace's parts."""
    x, y, labels = data(n, d, 10.0, dtype)
    v, r = np.ones(d, dtype), np.ones(n, dtype)
    half = logistic_problem(x, labels)
    squares = LeastSquares(Design(x, center=True), y)
    lengths = count_evaluations(half)

    def run(problem: Any, count: int, safeguard: bool) -> float:
        return seconds(lambda: gdnp(problem, max_iter=count, tol=0.0, safeguard=safeguard))

    bare, halfspace, least = [], [], []
    for _ in range(rounds):
        bare.append(seconds(lambda: [(x @ v, r @ x) for _ in range(steps)]) / steps)
        # The difference of two runs leaves out the start: the first length and the first ray.
        halfspace.append((run(half, 2 + steps, True) - run(half, 2, True)) / steps)
        least.append((run(squares, 2 + steps, False) - run(squares, 2, False)) / steps)
    lengths.clear()
    run(half, 2, True)
    first = len(lengths)
    run(half, 2 + steps, True)
    ray = half.ray(-half.u)
    point = ray.at(1.0)
    return {
        "products_ms": 1e3 * statistics.median(bare),
        "halfspace_ratio": statistics.median(a / b for a, b in zip(halfspace, bare, strict=True)),
        "least_squares_ratio": statistics.median(a / b for a, b in zip(least, bare, strict=True)),
        "forward_ms": median_ms(lambda: half.design.forward(ray.w), rounds),
        "backward_ms": median_ms(lambda: half.design.backward(point.means.each_first, ray.p), rounds),
        "look_ms": median_ms(lambda: ray.at(1.0), rounds),
        "looks_per_step": (len(lengths) - 2 * first) / steps,
    }


def logistic_problem(x: Any, labels: Any) -> Halfspace:
    return Halfspace(Design(x, center=True, constant=True).signed(-labels), named_loss("softplus"), alpha=ALPHA)


def count_evaluations(problem: Any) -> list[float]:
    """A list that grows by one with every look along a ray of the problem."""
    lengths: list[float] = []
    means = problem.means

    def counted(p: Any, gamma: float) -> Any:
        lengths.append(gamma)
        return means(p, gamma)

    problem.means = counted
    return lengths


def race_ours(build: Callable[[], Any], methods: list[str], gap: float, cap: int) -> tuple[dict[str, Any], float]:
    problem = build()
    runs = {name: METHODS[name](problem, max_iter=cap, tol=0.0) for name in methods}
    # L-BFGS, of which 300 iterations are enough everywhere here, says where the minimum is.
    runs["lbfgs"] = METHODS["lbfgs"](problem, max_iter=300, tol=1e-8)
    best = min(float(solution.history["objective"].min()) for solution in runs.values())
    rows: dict[str, Any] = {}
    for name, solution in runs.items():
        count = iterations_to(solution.history["objective"], best + gap)
        if count is None:
            rows[name] = {"iterations": None, "gap": float(solution.history["objective"][-1] - best)}
            continue
        rows[name] = {"iterations": count}
        rows[name]["seconds"] = seconds(lambda: METHODS[name](build(), max_iter=max(count, 1), tol=0.0))  # noqa: B023
    return rows, best


def race_theirs(make: Callable[[float], Any], x: Any, y: Any, loss: Callable[[Any], float], limit: float) -> Any:
    """The loosest tolerance of 1e-3 to 1e-10 that meets the limit."""
    row: dict[str, Any] = {"iterations": None}
    for exponent in range(3, 11):
        model = make(10.0**-exponent)
        spent = seconds(lambda: model.fit(x, y))  # noqa: B023
        row["gap"] = loss(model)
        if row["gap"] <= limit:
            return {"iterations": int(np.max(getattr(model, "n_iter_", 1))), "seconds": spent}
        if spent > 8:
            break
    return row


def race(n: int, d: int, condition: float, dtype: str, cap: int, methods: list[str]) -> dict[str, Any]:
    x, y, labels = data(n, d, condition, dtype)
    y = y - y.mean()
    variance = float(np.mean(y * y))

    def squares() -> LeastSquares:
        return LeastSquares(Design(x, center=True), y)

    least, best = race_ours(squares, methods, GAP * variance, cap)
    residual = lambda model: float(np.mean((y - model.predict(x)) ** 2) - best)  # noqa: E731
    least["LinearRegression"] = race_theirs(lambda tol: LinearRegression(), x, y, residual, GAP * variance)

    logistic, best_loss = race_ours(lambda: logistic_problem(x, labels), methods, GAP, cap)

    def above(model: Any) -> float:
        margin = -labels * model.decision_function(x)
        return float(np.logaddexp(0, margin).mean() + ALPHA / 2 * np.sum(model.coef_**2) - best_loss)

    logistic["LogisticRegression"] = race_theirs(
        lambda tol: LogisticRegression(C=1 / (ALPHA * n), tol=tol, max_iter=2000), x, labels, above, GAP
    )
    logistic["SGDClassifier"] = race_theirs(
        lambda tol: SGDClassifier("log_loss", alpha=ALPHA, tol=tol, max_iter=100, random_state=0), x, labels, above, GAP
    )
    return {"least_squares": least, "logistic": logistic}


def memory(n: int, d: int, dtype: str) -> dict[str, float]:
    """Peak MiB beside X (its own size in `data`)."""
    x, y, labels = data(n, d, 10.0, dtype)
    mib = {"data": x.nbytes / 2**20}
    models = {
        "GDNPRegressor": (GDNPRegressor(max_iter=3), y),
        "GDNPClassifier": (GDNPClassifier(max_iter=3), labels),
        "LinearRegression": (LinearRegression(), y),
        "LogisticRegression": (LogisticRegression(max_iter=3), labels),
    }
    for name, (model, target) in models.items():
        tracemalloc.start()
        model.fit(x, target)
        mib[name] = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
    return mib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="of the largest problem; less for a quick look")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    large, every = args.rows, ["gdnp", "gd", "agd", "bngd"]
    result: dict[str, Any] = {"schema": 1, "cost": {}, "race": {}, "memory_mib": {}}
    result["environment"] = environment() | {"blas_threads": max(pool["num_threads"] for pool in threadpool_info())}

    def keep() -> None:
        """After every part: what is done is not lost to an end by force."""
        result["load"] = os.getloadavg()[0]
        if args.out:
            args.out.write_text(json.dumps(result, indent=1) + "\n")

    for n, d, dtype in (
        (large, 1000, "float64"),
        (large, 100, "float64"),
        (large, 1000, "float32"),
        (5 * large, 100, "float32"),
    ):
        result["cost"][f"{n}x{d} {dtype}"] = numbers = step_cost(n, d, dtype)
        print(n, d, dtype, numbers, flush=True)
        keep()
    few = ["gdnp", "gd", "agd"]
    for n, d, condition, dtype, cap, methods in (
        (large // 10, 100, 10.0, "float64", 1000, every),
        (large // 10, 100, 1e4, "float64", 2000, every),
        (large, 100, 1e4, "float64", 300, few),
        (large // 4, 1000, 1e4, "float64", 200, few),
        (large, 1000, 10.0, "float64", 60, few),
        (5 * large, 100, 10.0, "float32", 100, few),
    ):
        name = f"{n}x{d} condition {condition:g}" + (" float32" if dtype == "float32" else "")
        started = time.perf_counter()
        result["race"][name] = race(n, d, condition, dtype, cap, methods)
        for kind, rows in result["race"][name].items():
            for method, row in rows.items():
                print(name, kind, method, row, flush=True)
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
        keep()
    for n, d, dtype in ((large // 4, 1000, "float64"), (5 * large, 100, "float32")):
        result["memory_mib"][f"{n}x{d} {dtype}"] = numbers = memory(n, d, dtype)
        print(n, d, dtype, numbers, flush=True)
        keep()


if __name__ == "__main__":
    main()
