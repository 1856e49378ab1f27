"""A table with a target column as a problem: what `normscope solve` reads."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normscope.messages.choices import check_choice
from normscope.results.decoding import check_file
from normscope.solve.comparison import Comparison, Promise, compare
from normscope.solve.design import Design, check_range
from normscope.solve.halfspace import Halfspace
from normscope.solve.iteration import Solution
from normscope.solve.least_squares import LeastSquares
from normscope.solve.margin_losses import LOSSES, named_loss
from normscope.solve.second_moment import SecondMomentSpectrum

Array = NDArray[np.floating]


def read_table(path: Path, target: str) -> tuple[Array, Array, tuple[str, ...]]:
    """(x, y, notes): numeric columns as features, standardized; y centred numbers, or -1 and 1 for two values.

    Columns that are not numeric, and constant ones, are left out and named in the notes.
    Raises a ValueError for a file that is no table, a missing column, no feature, a missing value or a target with one
    value.
    """
    table = _read_csv(path)
    check_choice("--target", target, [str(name) for name in table.columns])
    if not len(table):
        raise ValueError(f"{path} has a header and no rows; there is nothing to learn.")
    numeric = table.drop(columns=target).select_dtypes(["number", "bool"])
    words = [str(name) for name in table.columns if name != target and name not in numeric.columns]
    if not len(numeric.columns):
        raise ValueError(f"{path} has no numeric column beside {target!r}; encode the others as numbers first.")
    numbers = pd.concat([numeric, table[[target]].select_dtypes("number")], axis=1).to_numpy(dtype=np.float64)
    holes = int(numeric.isna().to_numpy().sum() + table[target].isna().sum())
    infinite = int(np.isinf(numbers).sum())
    if holes or infinite:
        raise ValueError(f"{path} has {holes} missing and {infinite} infinite values; fill them or drop their rows.")
    constant = [str(name) for name in numeric.columns if numeric[name].nunique() == 1]
    if len(constant) == len(numeric.columns):
        raise ValueError(
            f"Every numeric column of {path} beside {target!r} is constant; there is nothing to learn from."
        )
    notes = [f"Not numeric and left out: {', '.join(words)}."] if words else []
    notes += [f"Constant and left out: {', '.join(constant)}."] if constant else []
    x = _standardized(numeric.drop(columns=constant).to_numpy(dtype=np.float64))
    return x, _target(table[target], target), tuple(notes)


def _read_csv(path: Path) -> pd.DataFrame:
    check_file(path, most=math.inf)
    try:
        return pd.read_csv(path)
    except pd.errors.EmptyDataError:
        raise ValueError(f"{path} is empty; a table has a header line and rows.") from None
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no CSV table: {str(error).strip()}") from None


def _standardized(x: Array) -> Array:
    """Columns with mean zero and standard deviation one; division by the largest entry first avoids overflow."""
    x = x / np.abs(x).max(axis=0)
    return (x - x.mean(axis=0)) / x.std(axis=0)


def _target(column: Any, name: str) -> Array:
    labels = np.unique(column.to_numpy())
    if len(labels) < 2:
        raise ValueError(f"The target {name!r} has one value only, {labels.tolist()[0]!r}; there is nothing to learn.")
    if len(labels) == 2:
        return np.where(column.to_numpy() == labels[1], 1.0, -1.0)
    if not pd.api.types.is_numeric_dtype(column):
        raise ValueError(f"The target {name!r} has {len(labels)} values that are not numbers; two classes, or numbers.")
    y = column.to_numpy(dtype=np.float64)
    check_range(f"size of the target {name!r}", float(np.abs(y).max()), y.dtype)
    return y - y.mean()


def compare_on_table(
    path: Path, *, target: str, methods: list[str], loss: str, alpha: float, max_iter: int, tol: float, gap: float
) -> tuple[Comparison, str]:
    """Compare on least squares for loss="squared" or a numeric target under "auto", else on halfspaces; and a title."""
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
    _check_correlation(problem.u, np.sqrt(problem.energy))
    spectrum = problem.spectrum
    exact = problem.energy + problem.best_rho if spectrum.values is not None else None

    def promise(solution: Solution) -> Promise | None:
        known = spectrum.smallest > 0
        return Promise("gap of gdnp", solution.history["gap"], solution.history["bound"]) if known else None

    notes = (*notes, *_no_rate(spectrum))
    comparison = compare(
        problem, methods, target=gap * problem.energy, exact=exact, promise=promise, notes=notes, **limits
    )
    condition = spectrum.largest / spectrum.smallest if spectrum.smallest > 0 else np.inf
    return comparison, f"least squares, {x.shape[0]} x {x.shape[1]}, condition {condition:.3g}"


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
    _check_correlation(problem.u, 1.0)

    def promise(solution: Solution) -> Promise | None:
        if not problem.spectrum.smallest > 0:
            return None
        square = solution.history["gradient_norm_S"] ** 2
        return Promise("squared S^-1 norm of gdnp's gradient", square, solution.history["bound"])

    said = "The bound is that of Gaussian data without a penalty; above it, the data are not Gaussian."
    notes = (*notes, *(_no_rate(problem.spectrum) or [said]))
    comparison = compare(problem, methods, target=gap, promise=promise, notes=notes, **limits)
    return comparison, f"halfspace, {loss}, {x.shape[0]} x {x.shape[1]}, alpha {alpha:g}"


def _no_rate(spectrum: SecondMomentSpectrum) -> list[str]:
    if spectrum.smallest > 0:
        return []
    why = "S is singular, mu = 0" if spectrum.smallest == 0 else "S is too large to factor, mu is unknown"
    return [f"{why}: no linear rate is promised, and no bound is drawn."]


def _check_correlation(u: Array, scale: float) -> None:
    if np.linalg.norm(u) <= 1e-13 * scale:
        raise ValueError(
            "No numeric column correlates with the target (u = E[-y x] = 0): zero solves the problem already, and no "
            "direction is better than another. Add columns."
        )
