"""Mean-field paper, Figure 2: the convolutional network on MNIST."""

from normscope.reproduction.diagrams import phase_entry

ENTRY = phase_entry(
    "mf-fig-2-cnn-mnist",
    "mnist",
    "cnn",
    "Convolutional, MNIST",
    {
        "three-orders": "The printed sum over sites counts pairs of sites as if they moved together, so that lambda "
        "comes out up to 100 times too large for large gamma (`mf-fig-1/printed`), and too small at gamma 0.1.",
        "closer": "Corrected, sites of the last map have weights of their own and do not add up; docs/errata.md has "
        "each step.",
    },
)
