"""Checks that the three estimators share: arguments, weights, and a warning for an iteration that did not converge."""

import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight

from normscope.solve.iteration import Solution
from normscope.solve.problem import Problem

Array = NDArray[np.floating]


def check_settings(estimator: Any) -> int:
    """Check alpha, tol and max_iter; return a seed drawn from random_state."""
    rules: tuple[tuple[str, Any, int], ...] = (("alpha", Real, 0), ("tol", Real, 0), ("max_iter", Integral, 1))
    for name, number_type, least in rules:
        value: Any = getattr(estimator, name)
        if not isinstance(value, number_type) or isinstance(value, bool) or not least <= value < np.inf:
            what = "an integer" if number_type is Integral else "a finite number"
            raise ValueError(f"{name} must be {what}, at least {least}; got {value!r}.")
    return int(check_random_state(estimator.random_state).randint(2**31 - 1))


def check_weights(sample_weight: Any, x: Array) -> Array:
    """Sample weights as float64, checked to be non-negative and not all zero; ones where None."""
    weights = _check_sample_weight(sample_weight, x, dtype=np.float64)
    if weights.min() < 0 or not weights.max() > 0:
        raise ValueError(
            "sample_weight must be non-negative and not all zero; "
            f"got weights from {weights.min():.3g} to {weights.max():.3g}."
        )
    return weights


def rest(problem: Problem) -> Solution:
    """The solution where u = 0: zero is a critical point and no direction is better than another."""
    value, _ = problem.value_and_gradient(np.zeros(len(problem.u)))
    zeros = ("rho", "gamma", "c1", "slope", "gradient_norm", "gradient_norm_S")
    history = {"objective": np.array([value]), "step": np.ones(1), **{name: np.zeros(1) for name in zeros}}
    return Solution(np.zeros(len(problem.u)), 0.0, history | problem.rate_history(history), "tol")


def usable_start(problem: Problem, start: Array | None) -> Array | None:
    """A warm start, or None (start from -u) where the old solution has rho = 0."""
    if start is None or not np.any(start) or float(problem.u @ start) == 0.0:
        return None
    return start


def warn_if_unfinished(ends: Sequence[tuple[str, Array]], estimator: Any) -> None:
    """A ConvergenceWarning for the first (reason, gradient norms) with "max_iter" or "no finite length"."""
    for reason, norms in ends:
        if reason == "max_iter":
            passage = f"gradient norm {norms[0]:.2g} -> {norms[-1]:.2g}"
            said = f"max_iter={estimator.max_iter} reached ({passage}). Scale the features, or raise max_iter or tol."
        elif reason == "no finite length":
            said = "The loss falls for ever along the direction found: there is no finite minimiser. Take alpha > 0."
        else:
            continue
        warnings.warn(f"{type(estimator).__name__}: {said}", ConvergenceWarning, stacklevel=3)
        return
