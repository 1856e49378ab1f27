"""`predict`: lambda_max and the stability limit eta* of a network before training, from mean-field theory.

`predict_network.py` is the way through the package: `graph/` traces the model and evaluates its operations by the rules
in `rules/`, one file for each family; `kernels/` has what a rule gets and returns, and reads the eigenvalues off; and
`result.py` holds the answer.
"""

from normscope.prediction.predict_network import predict
from normscope.prediction.refusals import UnknownOperation
from normscope.prediction.result import Prediction
from normscope.prediction.rules.activations import elementwise_module

__all__ = ["Prediction", "UnknownOperation", "elementwise_module", "predict"]
