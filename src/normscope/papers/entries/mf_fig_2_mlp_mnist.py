"""Mean-field paper, Figure 2: the fully connected network on MNIST."""

from normscope.papers.phase_diagrams import phase_entry

ENTRY = phase_entry(
    "mf-fig-2-mlp-mnist",
    "mnist",
    "mlp",
    "Fully connected, MNIST",
    {
        "three-orders": "The printed recursion divides by the second moment where BatchNorm divides by the variance, "
        "and holds its statistics constant; on this network the two errors act against each other, so that its line "
        "crosses the boundary: too high for small gamma, too low for large.",
        "corrected": "At the smallest gammas the boundary lies below eta*: steps are large there, gamma and the "
        "weights move far within a few of them, and the curvature at the start is no longer that of training.",
        "closer": "As trained, the hidden layers' share of the top eigenvalue cancels, and what remains is the last "
        "layer's; docs/evidence/theory.md has the derivation.",
        "measured": "They differ by less than the grid resolves.",
        "best-rate": "From gamma 0.5 on the best rate falls from eta* to a quarter of it; at gamma 4 and 5 it is the "
        "smallest rate of the grid.",
    },
)
