"""Mean-field paper, Figure 2: the convolutional network on CIFAR-10."""

from normscope.reproduction.diagrams import phase_entry

ENTRY = phase_entry("mf-fig-2-cnn-cifar10", "cifar10", "cnn", "Convolutional, CIFAR-10", {})
