"""Figure 4 of the main body: the landscape of VGG over training, with and without BatchNorm."""

import numpy as np

from normscope.papers.curve_statistics import band_lines, beta_panel, each, gradient_change_panel, pooled, pooled_band
from normscope.papers.entry import Entry, Part, Picture, Runs, Statement
from normscope.papers.experiments.vgg import VGG

CELLS = ("none", "batch")
AT_SNAPSHOTS = ("loss_min", "loss_max", "change_max", "beta")
# Before this step the network without BatchNorm has hardly moved, and its flat start is a hundred times smoother.
FIRST = 100
EARLY = 1500


def _p95(values: np.ndarray) -> float:
    return float(np.quantile(values, 0.95))


def _loss(runs: Runs) -> list[Part]:
    none, batch = (pooled_band(runs.of(cell), FIRST) for cell in CELLS)
    tops, means = _p95(none) / _p95(batch), none.mean() / batch.mean()
    return [
        Part(f"the 95th percentile of the band is {tops:.3g} times wider without", tops >= 2),
        Part(f"the mean band {means:.3g} times", means >= 1.3),
    ]


def _gradient(runs: Runs) -> list[Part]:
    none, batch = (_p95(pooled(runs.of(cell), "change_max", FIRST)) for cell in CELLS)
    words = f"the 95th percentile of the gradient's change is {none / batch:.3g} times larger without"
    return [Part(words, none / batch >= 2)]


def _beta(runs: Runs) -> list[Part]:
    limit = 2 / next(iter(runs.of("batch").values()))["lr"]
    none, batch = (float(pooled(runs.of(cell), "beta", FIRST).max()) / limit for cell in CELLS)
    return [
        Part(f"beta peaks at {batch:.3g} times 2/lr with BatchNorm", batch <= 1.25),
        Part(f"at {none:.3g} times without", none >= 2),
    ]


def _early(runs: Runs) -> list[Part]:
    pairs = [
        (float(pooled_band({0: a}, 0, EARLY).mean()), float(pooled_band({0: b}, 0, EARLY).mean()))
        for a, b in runs.pairs("none", "batch")
    ]
    narrower = sum(b < a for a, b in pairs)
    return [
        Part(
            f"over the first {EARLY:,} steps the mean band is {each([b for _, b in pairs])} with BatchNorm and "
            f"{each([a for a, _ in pairs])} without: narrower with it in {narrower} of {len(pairs)} seeds",
            narrower == len(pairs),
        )
    ]


def _panels(runs: Runs) -> list[Picture]:
    if not runs.has(CELLS):
        return []
    lr = next(iter(runs.of("batch").values()))["lr"]
    return [
        Picture(
            "Loss along the gradient, seed 0",
            "step",
            "cross-entropy",
            band_lines(runs, CELLS, "loss_min", "loss_max"),
            log_y=True,
        ),
        gradient_change_panel(runs, CELLS),
        beta_panel(runs, CELLS, lr),
    ]


ENTRY = Entry(
    name="fig-4",
    title="Landscape of VGG",
    source="How Does Batch Normalization Help Optimization?, Figure 4 (main body)",
    origin="VGG-16 (depth not stated), CIFAR-10, SGD lr 0.1, batch 128, 15,000 steps, no augmentation (Appendix A.1)",
    needs={VGG: CELLS},
    statements=(
        Statement(
            "loss",
            "With BatchNorm the loss varies less along the gradient.",
            "From step 100 on, pooled over seeds: 95th percentile of the band, without / with >= 2; mean band >= 1.3.",
            _loss,
            curves=AT_SNAPSHOTS,
        ),
        Statement(
            "gradient",
            "With BatchNorm the gradient is more predictive.",
            "From step 100 on, 95th percentile of the largest change of the gradient: without / with >= 2.",
            _gradient,
            curves=AT_SNAPSHOTS,
        ),
        Statement(
            "beta",
            "With BatchNorm the effective beta-smoothness is better.",
            "Largest beta from step 100 on: with BatchNorm <= 1.25 (2/lr), without >= 2 (2/lr).",
            _beta,
            curves=AT_SNAPSHOTS,
            means="The median of beta is near 2/lr for both: training sits at the edge of stability. Spikes above it "
            "are what differs. With BatchNorm they are rare and hang on the run: four of the five seeds peak at 1.01 "
            "to 1.12 times 2/lr, and three of the plans trained once before on such a GPU, not kept, peaked at 1.05.",
        ),
        Statement(
            "throughout",
            "The improvement is there throughout training, its beginning included.",
            "Mean band over the first 1,500 steps: narrower with BatchNorm in every seed.",
            _early,
            curves=AT_SNAPSHOTS,
            means="The order is the reverse at the start: without BatchNorm the network is at a flat place and "
            "does not learn yet.",
        ),
    ),
    panels=_panels,
)
