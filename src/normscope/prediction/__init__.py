"""A network's graph walked with the theory: lambda_max and the largest stable learning rate before training."""

from normscope.prediction.modules import elementwise_module
from normscope.prediction.outcome import Prediction
from normscope.prediction.predicting import predict
from normscope.prediction.refusal import UnknownOperation

__all__ = ["Prediction", "UnknownOperation", "elementwise_module", "predict"]
