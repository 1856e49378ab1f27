"""Mean-field paper, Figure 2: the fully connected network on CIFAR-10.

Numbers in the texts that do not come from the rules come from `mf-modes`: its five seeds, on the sweep's stream of
batches; "alone" is training on its first batch again and again. Measured once and not stored: lambda after ten steps,
eta* of `predict` without a batch, and the first rise against the mean mode. So were the shares of variance, of that
batch and of seed 0's first layer, and the correlation of 0.90 between the mode's outputs and the images' mean over the
batch, which shows that the mode is brightness (seed 0, gamma 1).
"""

from normscope.papers.phase_diagrams import phase_entry

ENTRY = phase_entry(
    "mf-fig-2-mlp-cifar10",
    "cifar10",
    "mlp",
    "Fully connected, CIFAR-10",
    {
        "three-orders": "The boundary is MNIST's, within one step of the grid at every gamma, and so is the printed "
        "line, which knows nothing of the data. It crosses the boundary as there: too high for small gamma, too low "
        "for large.",
        "corrected": "What limits it: on a batch of photographs the top eigenvalue is that of a data mode, brightness "
        "(30 % of the batch's variance lie in one direction; 11 % on MNIST), and training survives it (`mf-modes`). "
        "It does so on the first batch alone too, so that it is not other batches that help: at 1.26 times measured "
        "eta* no run diverges in 40 steps (gamma 0.23, 1 and 3.3), and at gamma 1 and 3.3 lambda on that batch falls "
        "to 0.5 to 0.6 of its start within twelve. What is left is the mean mode, in which a batch's outputs all move "
        "alike, and the boundary is that of the mean mode. On MNIST it is the top one from the start. Best form "
        "found: eta* of the mean mode alone, `predict(...).mean_mode`: 0.07 decades in the median, 0.21 at worst (20 "
        "values, 5 seeds); `predict` without `batch=`, which takes inputs as independent, has 0.07 and 0.22. The "
        "worst is gamma 0.1, as on MNIST.",
        "closer": "The printed theory has no data modes, and so none that is too large; against the mean mode of the "
        "corrected one (0.07 and 0.21) it is further away, in the median and at worst.",
        "measured": "Medians over seeds differ by at most 0.02 decades, single seeds by up to 0.04. By means over "
        "channels the medians would by 0.1: channels that see more of the brightness have a larger variance, and "
        "BatchNorm takes more of it from them (docs/evidence/theory.md). The mean over six batches has 0.8 of the "
        "first batch's lambda and lies 0.1 decades nearer to the boundary. Lambda after ten steps at eta*/2 is nearer "
        "from gamma 0.5 on (0.00 to 0.15 decades, four values, one seed) and far too small below (0.4 and 0.8 at "
        "gamma 0.23 and 0.12).",
        "onset": "Nothing rises at eta* of the data mode. From that of the mean mode the first rise is 0.06 decades "
        "away in the median (20 values, 5 seeds), as on MNIST.",
        "best-rate": "From gamma 3.3 on the best rate is the smallest of the grid.",
    },
)
