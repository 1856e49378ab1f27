"""Mean-field paper, Figure 2: the fully connected network on CIFAR-10."""

from normscope.reproduction.diagrams import phase_entry

ENTRY = phase_entry("mf-fig-2-mlp-cifar10", "cifar10", "mlp", "Fully connected, CIFAR-10", {})
