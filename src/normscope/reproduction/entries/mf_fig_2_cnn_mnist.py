"""Mean-field paper, Figure 2: the convolutional network on MNIST."""

from normscope.reproduction.diagrams import phase_entry

ENTRY = phase_entry("mf-fig-2-cnn-mnist", "mnist", "cnn", "Convolutional, MNIST", {})
