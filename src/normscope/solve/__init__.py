"""Length-direction decoupling as solvers: gradient descent in normalized parametrization (GDNP), its rates, baselines.

GDNPRegressor, GDNPClassifier, GDNPMLPClassifier    scikit-learn estimators
gdnp, baselines.METHODS                             the iteration and what it is compared with, on any problem
LeastSquares, Halfspace, GaussianHalfspace          problems: on data, or with exact Gaussian expectations
convergence_bound                                   what the theorems promise
"""

from normscope.solve.classifier import GDNPClassifier
from normscope.solve.design import Design
from normscope.solve.gaussian import GaussianHalfspace, gaussian_cloud, gaussian_expectation
from normscope.solve.halfspace import Halfspace
from normscope.solve.iteration import Solution, gdnp
from normscope.solve.least_squares import LeastSquares
from normscope.solve.margin_losses import named_loss
from normscope.solve.mlp_classifier import GDNPMLPClassifier
from normscope.solve.rates import convergence_bound, identities
from normscope.solve.regressor import GDNPRegressor

__all__ = [
    "Design",
    "GDNPClassifier",
    "GDNPMLPClassifier",
    "GDNPRegressor",
    "GaussianHalfspace",
    "Halfspace",
    "LeastSquares",
    "Solution",
    "convergence_bound",
    "gaussian_cloud",
    "gaussian_expectation",
    "gdnp",
    "identities",
    "named_loss",
]
