"""`predict`: lambda_max and the stability limit eta* of a network before training, from mean-field theory.

`predict_network.py` is the way through the package: `graph/` traces the model and evaluates its operations by the rules
in `rules/`, one file for each family; `kernels/` has the fields that rules get and return; `walk.py` collects what the
rules add, `mode_eigenvalues.py` reads the eigenvalues off, and `result.py` holds the answer.
"""

from normscope.prediction.predict_network import predict
from normscope.prediction.refusals import UnknownOperation
from normscope.prediction.result import Prediction
from normscope.prediction.rules.activations import elementwise_module

__all__ = ["Prediction", "UnknownOperation", "elementwise_module", "predict"]
