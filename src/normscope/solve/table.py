"""A table with a target column as a problem: what `normscope solve` reads."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normscope.choices import check_choice
from normscope.solve.comparison import Comparison, Promise, compare
from normscope.solve.design import Design
from normscope.solve.halfspace import Halfspace
from normscope.solve.iteration import Solution
from normscope.solve.least_squares import LeastSquares
from normscope.solve.losses import LOSSES, named_loss
from normscope.solve.spectrum import Spectrum

Array = NDArray[np.floating]


def read_table(path: Path, target: str) -> tuple[Array, Array, tuple[str, ...]]:
    """(x, y, notes): numeric columns as features, standardized; y centred numbers, or -1 and 1 for two values.

    Raises a ValueError for a missing column, no feature, a missing value or a target with one value.
    """
    table = pd.read_csv(path)
    check_choice("--target", target, [str(name) for name in table.columns])
    features = table.drop(columns=target).select_dtypes(["number", "bool"])
    left_out = [str(name) for name in table.columns if name != target and name not in features.columns]
    if not len(features.columns) or not len(features):
        raise ValueError(f"{path} has no numeric column beside {target!r}; encode the others as numbers first.")
    numbers = pd.concat([features, table[[target]].select_dtypes("number")], axis=1).to_numpy(dtype=np.float64)
    holes = int(features.isna().to_numpy().sum() + table[target].isna().sum())
    infinite = int(np.isinf(numbers).sum())
    if holes or infinite:
        raise ValueError(f"{path} has {holes} missing and {infinite} infinite values; fill them or drop their rows.")
    labels = np.unique(table[target].to_numpy())
    if len(labels) < 2:
        raise ValueError(
            f"The target {target!r} has one value only, {labels.tolist()[0]!r}; there is nothing to learn."
        )
    x = features.to_numpy(dtype=np.float64)
    spread = x.std(axis=0)
    x = (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    notes = [f"Not numeric and left out: {', '.join(left_out)}."] if left_out else []
    if len(labels) == 2:
        return x, np.where(table[target].to_numpy() == labels[1], 1.0, -1.0), tuple(notes)
    if not pd.api.types.is_numeric_dtype(table[target]):
        raise ValueError(
            f"The target {target!r} has {len(labels)} values that are not numbers; two classes, or numbers."
        )
    y = table[target].to_numpy(dtype=np.float64)
    return x, y - y.mean(), tuple(notes)


def compare_on_table(
    path: Path, *, target: str, methods: list[str], loss: str, alpha: float, max_iter: int, tol: float, gap: float
) -> tuple[Comparison, str]:
    """Least squares for loss="squared" or a numeric target under "auto"; else halfspaces. Returns it with a title."""
    check_choice("--loss", loss, ["auto", "squared", *LOSSES])
    x, y, notes = read_table(path, target)
    two = set(np.unique(y)) == {-1.0, 1.0}
    if loss in LOSSES and not two:
        raise ValueError(f"--loss {loss} needs a target with two values; {target!r} has more. Take --loss squared.")
    limits = {"max_iter": max_iter, "tol": tol}
    if loss == "squared" or (loss == "auto" and not two):
        return _least_squares(x, y - y.mean(), alpha, methods, gap, notes, limits)
    return _halfspace(x, y, "softplus" if loss == "auto" else loss, alpha, methods, gap, notes, limits)


def _least_squares(
    x: Array, y: Array, alpha: float, methods: list[str], gap: float, notes: tuple[str, ...], limits: dict[str, Any]
) -> tuple[Comparison, str]:
    problem = LeastSquares(Design(x), y, alpha=alpha)
    spectrum = problem.spectrum
    exact = problem.energy + problem.best_rho if spectrum.values is not None else None

    def promise(found: Solution) -> Promise | None:
        known = spectrum.smallest > 0
        return Promise("gap of gdnp", found.history["gap"], found.history["bound"]) if known else None

    notes = (*notes, *_no_rate(spectrum))
    found = compare(problem, methods, target=gap * problem.energy, exact=exact, promise=promise, notes=notes, **limits)
    condition = spectrum.largest / spectrum.smallest if spectrum.smallest > 0 else np.inf
    return found, f"least squares, {x.shape[0]} x {x.shape[1]}, condition {condition:.3g}"


def _halfspace(
    x: Array,
    y: Array,
    loss: str,
    alpha: float,
    methods: list[str],
    gap: float,
    notes: tuple[str, ...],
    limits: dict[str, Any],
) -> tuple[Comparison, str]:
    problem = Halfspace(Design(x, center=True, constant=True).signed(-y), named_loss(loss), alpha=alpha)

    def promise(found: Solution) -> Promise | None:
        if not problem.spectrum.smallest > 0:
            return None
        square = found.history["gradient_norm_S"] ** 2
        return Promise("squared S^-1 norm of gdnp's gradient", square, found.history["bound"])

    said = "The bound is that of Gaussian data without a penalty; above it, the data are not Gaussian."
    notes = (*notes, *(_no_rate(problem.spectrum) or [said]))
    found = compare(problem, methods, target=gap, promise=promise, notes=notes, **limits)
    return found, f"halfspace, {loss}, {x.shape[0]} x {x.shape[1]}, alpha {alpha:g}"


def _no_rate(spectrum: Spectrum) -> list[str]:
    if spectrum.smallest > 0:
        return []
    why = "S is singular, mu = 0" if spectrum.smallest == 0 else "S is too large to factor, mu is unknown"
    return [f"{why}: no linear rate is promised, and no bound is drawn."]
