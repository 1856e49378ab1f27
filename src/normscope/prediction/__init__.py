"""A network's graph walked with the theory: lambda_max and the largest stable learning rate before training."""

from normscope.prediction.predict_network import predict
from normscope.prediction.refusals import UnknownOperation
from normscope.prediction.result import Prediction
from normscope.prediction.rules.activations import elementwise_module

__all__ = ["Prediction", "UnknownOperation", "elementwise_module", "predict"]
