"""The networks of the papers; `norm=` chooses their normalizer."""

from normscope.models.cnn import CNN
from normscope.models.dln import DLN
from normscope.models.initialization import initialize
from normscope.models.mlp import MLP
from normscope.models.resnet import PreActResNet18
from normscope.models.vgg import VGG

__all__ = ["CNN", "DLN", "MLP", "VGG", "PreActResNet18", "initialize"]
