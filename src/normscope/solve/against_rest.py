"""Base of the two classifiers: settings, one problem for each class against the rest, scores, predictions."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from normscope.solve.design import Design
from normscope.solve.estimator_checks import check_settings, check_weights, warn_if_unfinished
from normscope.solve.margin_losses import named_loss
from normscope.solve.second_moment import SecondMomentSpectrum, second_moment

Array = NDArray[np.floating]


@dataclass(frozen=True)
class ClassFit:
    """One class's fit: coef = gamma direction and intercept = gamma offset, gamma the last of its history.

    For a network, direction is (units, d) and offset (units,).
    """

    direction: Array
    offset: Any
    history: dict[str, Array]
    reason: str

    @property
    def coef(self) -> Array:
        return self.history["gamma"][-1, ..., None] * self.direction

    @property
    def intercept(self) -> Any:
        return self.history["gamma"][-1] * self.offset


class AgainstRest(ClassifierMixin, BaseEstimator, ABC):
    """Abstract: a subclass fits one row per positive class, and scores rows of x.

    Two classes make one problem, with the second as the positive one; more make one problem each.
    """

    classes_: Any
    coef_: Array
    intercept_: Array

    def __init__(
        self,
        *,
        loss: str = "softplus",
        alpha: float = 1e-4,
        fit_intercept: bool = True,
        tol: float = 1e-4,
        max_iter: int = 1000,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.loss = loss
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.random_state = random_state

    @abstractmethod
    def _fit_row(
        self, design: Design, spectrum: SecondMomentSpectrum, start: Array | None, rng: np.random.Generator
    ) -> ClassFit:
        """One class against the rest; `start` is the last fit in the design's space, or None."""

    @abstractmethod
    def _units(self) -> tuple[int, ...]:
        """The shape of a row's intercept."""

    @abstractmethod
    def _scores(self, x: Array) -> Array:
        """(n, rows)."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """X (n, d), y (n,) of two or more classes, sample_weight (n,) or None."""
        seed = check_settings(self)
        named_loss(self.loss)
        old = (self.classes_, self.coef_, self.intercept_) if self.warm_start and hasattr(self, "coef_") else None
        design, y = self._read(X, y, sample_weight)
        positives = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        shape = (len(positives), *self._units(), design.x.shape[1])
        warm = old is not None and np.array_equal(old[0], self.classes_) and old[1].shape == shape
        _, spectrum = second_moment(design, seed=seed)
        rng = np.random.default_rng(seed)
        rows = []
        for k, label in enumerate(positives):
            start_coef = design.direction(old[1][k], old[2][k]) if old is not None and warm else None
            # z = -y x: rows of the positive class have sign -1.
            rows.append(self._fit_row(design.signed(np.where(y == label, -1.0, 1.0)), spectrum, start_coef, rng))
        self.coef_ = np.stack([row.coef for row in rows])
        self.intercept_ = np.stack([row.intercept for row in rows])
        self.history_ = [row.history | {"direction": row.direction, "offset": row.offset} for row in rows]
        self.n_iter_ = max(len(row.history["objective"]) - 1 for row in rows)
        warn_if_unfinished([(row.reason, row.history["gradient_norm"]) for row in rows], self)
        return self

    def decision_function(self, X: Any) -> Array:
        """(n,) for two classes, positive for the second; else (n, classes)."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        scores = self._scores(x)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> Any:
        """The class of the largest decision value."""
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[chosen]

    def _read(self, X: Any, y: Any, sample_weight: Any) -> tuple[Design, Any]:
        """Set classes_; return the data as a design without signs, and y as an array."""
        x, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        weights = check_weights(sample_weight, x)
        present = np.unique(y[weights > 0])
        if len(present) < 2:
            raise ValueError(
                "This solver needs samples of at least 2 classes in the data, but the data contains only one class: "
                f"{present[0]!r}. Samples of weight zero do not count."
            )
        self.classes_ = np.unique(y)
        return Design(x, weights, center=self.fit_intercept, constant=self.fit_intercept), y
