"""Mean-field paper, Figure 2: the fully connected network on CIFAR-10."""

from normscope.reproduction.diagrams import phase_entry

ENTRY = phase_entry(
    "mf-fig-2-mlp-cifar10",
    "cifar10",
    "mlp",
    "Fully connected, CIFAR-10",
    {
        "three-orders": "The printed recursion divides by the second moment where BatchNorm divides by the variance, "
        "and holds its statistics constant; on this network the two errors act against each other, so that its line "
        "crosses the boundary: too high for small gamma, too low for large.",
        "closer": "As trained, the hidden layers' share of the top eigenvalue cancels, and what remains is the last "
        "layer's; docs/theory.md has the derivation.",
    },
)
