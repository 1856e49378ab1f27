"""The networks of the papers, each with a `norm=` slot."""

from normscope.models.cnn import CNN
from normscope.models.dln import DLN
from normscope.models.init import initialize
from normscope.models.mlp import MLP
from normscope.models.resnet import PreActResNet18
from normscope.models.vgg import VGG

__all__ = ["CNN", "DLN", "MLP", "VGG", "PreActResNet18", "initialize"]
