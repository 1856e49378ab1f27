"""A network's graph walked with the theory: lambda_max and the largest stable learning rate before training."""

from normscope.prediction.graph import UnknownOperation
from normscope.prediction.modules import elementwise_module
from normscope.prediction.outcome import Prediction
from normscope.prediction.predicting import predict

__all__ = ["Prediction", "UnknownOperation", "elementwise_module", "predict"]
