"""Mean-field paper, Figure 2: the fully connected network on MNIST."""

from normscope.reproduction.diagrams import phase_entry

ENTRY = phase_entry("mf-fig-2-mlp-mnist", "mnist", "mlp", "Fully connected, MNIST", {})
