"""What the two classifiers share: classes, one problem per class against the rest, scores, predictions."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from normscope.solve.design import Design
from normscope.solve.fitting import check_weights

Array = NDArray[np.floating]


class AgainstRest(ClassifierMixin, BaseEstimator, ABC):
    """Abstract: a subclass has `fit_intercept`, fits one row per positive class, and scores rows of x.

    Two classes make one problem, with the second as the positive one; more make one problem each.
    """

    classes_: Any
    coef_: Array
    intercept_: Array
    fit_intercept: bool

    @abstractmethod
    def _scores(self, x: Array) -> Array:
        """(n, rows)."""

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
        """Sets classes_; the data as a design without signs, and y as an array."""
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

    def _last_fit(self) -> Any:
        """(classes_, coef_, intercept_) of the last fit, or nothing; ask before `_read`."""
        return (self.classes_, self.coef_, self.intercept_) if hasattr(self, "coef_") else ()

    def _signed(self, design: Design, y: Any) -> Iterator[Design]:
        """One design per row of coef_: rows of the positive class have sign -1, z = -y x."""
        positives = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        for label in positives:
            yield design.signed(np.where(y == label, -1.0, 1.0))
