"""The encyclopedia article: robust to initial weights and learning rates, and to larger ones."""

from typing import Any

import numpy as np

from normscope.papers.curve_statistics import each, spread
from normscope.papers.entry import Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place

INITS = ("Glorot", "He", "mean-field", "0.1 Glorot", "10 Glorot")
RATES = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
CELLS = ("none", "batch")
GOOD = 0.9


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    """Test accuracy for five initial weights at one learning rate, and for eight learning rates at Glorot's."""
    import torch

    from normscope import data, losses, models
    from normscope.data import batches
    from normscope.training import accuracy, train

    digits = data.digits(seed=seed)

    def trained(init: str, lr: float) -> float:
        """Zero where training diverged."""
        changes: dict[str, dict[str, Any]] = {
            "He": {"init": "mean_field", "sigma_b2": 0.0},
            "mean-field": {"init": "mean_field"},
        }
        options = changes.get(init, {"init": "glorot"})
        model = models.MLP(64, 10, width=100, depth=settings["depth"], norm=settings["norm"], seed=seed, **options)
        factor = {"0.1 Glorot": 0.1, "10 Glorot": 10.0}.get(init, 1.0)
        with torch.no_grad():
            for layer in model:
                if isinstance(layer, torch.nn.Linear):
                    layer.weight *= factor
        stream = batches(digits.x_train, digits.y_train, batch_size=128, seed=seed, steps=settings["steps"])
        sgd = torch.optim.SGD(model.parameters(), lr=lr)
        training = train(model, losses.cross_entropy, stream, sgd, seed=seed, on_step=place.tick)
        model.eval()
        return 0.0 if training.diverged_at is not None else accuracy(model, digits.x_test, digits.y_test)

    return {
        "init": list(INITS),
        "by_init": [trained(init, settings["lr"]) for init in INITS],
        "rate": RATES,
        "by_rate": [trained("Glorot", lr) for lr in RATES],
    }


ROBUST = Experiment(
    name="robustness",
    what="six-layer MLP on the digits: test accuracy over initial weights and over learning rates",
    settings={
        "paper": {"depth": 6, "steps": 300, "lr": 0.1},
        "small": {"depth": 6, "steps": 150, "lr": 0.1},
    },
    cells={"none": {"norm": "none"}, "batch": {"norm": "batch"}},
    run=run,
    seconds={("paper", "cpu"): 15.0, ("small", "cpu"): 8.0, ("paper", "cuda"): 25.0, ("small", "cuda"): 12.0},
)


def _rows(runs: Runs, cell: str, name: str) -> np.ndarray:
    by_seed = runs.of(cell)
    return np.array([by_seed[seed][name] for seed in sorted(by_seed)])


def _init(runs: Runs) -> list[Part]:
    none, batch = (_rows(runs, cell, "by_init") for cell in CELLS)
    spreads = [float((rows.max(1) - rows.min(1)).mean()) for rows in (none, batch)]
    words = (
        f"between the best and the worst of five initial weights lie {100 * spreads[1]:.1f} points of test accuracy "
    )
    return [Part(f"{words}with BatchNorm, {100 * spreads[0]:.1f} without", spreads[1] <= 0.5 * spreads[0])]


def _rates(runs: Runs) -> list[Part]:
    none, batch = ((_rows(runs, cell, "by_rate") >= GOOD).sum(1) for cell in CELLS)
    words = f"of eight learning rates {each(batch, 'd')} reach 90 % with BatchNorm, {each(none, 'd')} without"
    return [Part(words, bool((batch > none).all()))]


def _higher(runs: Runs) -> list[Part]:
    tops = []
    for cell in CELLS:
        rows = _rows(runs, cell, "by_rate") >= GOOD
        tops.append([max((lr for lr, good in zip(RATES, row, strict=True) if good), default=0.0) for row in rows])
    words = f"the largest rate that reaches 90 % is {each(tops[1])} with BatchNorm and {each(tops[0])} without"
    return [Part(words, float(np.median(tops[1])) >= 3 * float(np.median(tops[0])))]


def _panels(runs: Runs) -> list[Picture]:
    if not runs.has(CELLS):
        return []
    by_rate, by_init = [], []
    for cell in CELLS:
        if runs.of(cell):
            rates, inits = _rows(runs, cell, "by_rate"), _rows(runs, cell, "by_init")
            by_rate.append(spread(cell, RATES, list(rates)))
            by_init.append(spread(cell, list(range(1, 1 + len(INITS))), list(inits)))
    return [
        Picture("Learning rates", "learning rate", "test accuracy", by_rate, log_x=True),
        Picture("Initial weights", "1 Glorot, 2 He, 3 mean-field, 4 /10, 5 x 10", "test accuracy", by_init),
    ]


ENTRY = Entry(
    name="robustness",
    title="Robust to initial weights and learning rates",
    source='Encyclopedia article "Batch normalization", Internal covariate shift',
    origin="digits, six linear layers of width 100, SGD, batch 128, 300 steps; lr 0.1 for the initial weights",
    needs={ROBUST: CELLS},
    statements=(
        Statement(
            "initialisation",
            "With BatchNorm the network is more robust to the way its weights are drawn.",
            "Best minus worst test accuracy over five initial weights, mean of seeds: with at most half of without.",
            _init,
            n=5,
            means="Without BatchNorm Glorot's weights times ten diverge, which counts as 0; as chance, 10 %, the "
            "spread would be some ten points less, and the verdict the same.",
        ),
        Statement(
            "learning-rates",
            "With BatchNorm the network is more robust to the learning rate.",
            "More of the eight learning rates reach 90 % test accuracy with BatchNorm, in every seed.",
            _rates,
            n=5,
        ),
        Statement(
            "higher-rates",
            "With BatchNorm higher learning rates can be used.",
            "Largest of the eight rates that reaches 90 %, median of seeds: with at least 3 times without.",
            _higher,
            n=5,
        ),
    ),
    panels=_panels,
)
