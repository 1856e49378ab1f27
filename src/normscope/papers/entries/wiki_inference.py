"""The encyclopedia article, "Inference": the transform with population statistics."""

from typing import Any

import numpy as np

from normscope.papers.curve_statistics import each, top
from normscope.papers.entry import Curve, Entry, Part, Picture, Runs, Statement
from normscope.papers.experiment import Curves, Experiment, Place

SIZES = (2, 3, 5, 8, 16, 32)


def run(settings: dict[str, Any], seed: int, place: Place) -> Curves:
    import torch

    from normscope import data, losses, models
    from normscope.data import batches
    from normscope.norms import use_population_statistics
    from normscope.training import train

    digits = data.digits(seed=seed).to(dtype=torch.float64)
    model = models.MLP(64, 10, width=30, depth=2, norm="batch", seed=seed).double()
    stream = batches(digits.x_train, digits.y_train, batch_size=100, seed=seed, steps=settings["steps"])
    train(
        model, losses.cross_entropy, stream, torch.optim.SGD(model.parameters(), lr=0.1), seed=seed, on_step=place.tick
    )
    parts = list(batches(digits.x_train, digits.y_train, batch_size=100, seed=seed, epochs=1))
    use_population_statistics(model, parts)
    model.eval()
    layers: list[Any] = list(model)
    linear, norm = layers[1:3]
    with torch.no_grad():
        # The article's own formulas, from the layer's inputs, batch by batch.
        values = [linear(x.flatten(1)).numpy() for x, _ in parts]
        mean = np.mean([v.mean(0) for v in values], axis=0)
        variance = 100 / 99 * np.mean([v.var(0) for v in values], axis=0)
        y = linear(digits.x_test.flatten(1)).numpy()
        gamma, beta, eps = norm.weight.numpy(), norm.bias.numpy(), norm.eps
        expected = gamma * (y - mean) / np.sqrt(variance + eps) + beta
        transformed = norm(torch.from_numpy(y)).numpy()
        alone = torch.cat([model(x[None]) for x in digits.x_test[:20]])
        together = model(digits.x_test[:20])
        a, b = torch.from_numpy(y[:1]), torch.from_numpy(y[1:2])
        additive = (norm(a + b) - norm(a) - norm(b)).abs().max() / norm(a + b).abs().max()
    generator = np.random.default_rng(seed)
    biased = []
    for m in SIZES:
        draws = 3.0 * generator.standard_normal((settings["draws"], m))
        biased.append(draws.var(1))
    return {
        "transform_error": float(np.abs(transformed - expected).max() / np.abs(expected).max()),
        "alone_error": float((alone - together).abs().max() / together.abs().max()),
        "additive_error": float(additive),
        "m": list(SIZES),
        "biased_mean": [float(v.mean()) for v in biased],
        "biased_error": [float(v.std(ddof=1) / np.sqrt(len(v))) for v in biased],
    }


INFERENCE = Experiment(
    name="inference",
    what="BatchNorm at inference on a trained digits network, and the variance of small batches from N(0, 9)",
    settings={"paper": {"steps": 100, "draws": 20_000}, "small": {"steps": 100, "draws": 20_000}},
    cells={"digits": {}},
    run=run,
    seconds={("paper", "cpu"): 2.0, ("small", "cpu"): 2.0, ("paper", "cuda"): 2.0, ("small", "cuda"): 2.0},
)


def _close(runs: Runs, name: str, words: str) -> list[Part]:
    errors = [curves[name] for curves in runs.of("digits").values()]
    return [Part(f"{words}: relative differences {each(errors, '.1e')}", top(errors) <= 1e-10)]


def _unbiased(runs: Runs) -> list[Part]:
    parts = []
    for i, m in enumerate(SIZES):
        rows = [(run["biased_mean"][i], run["biased_error"][i]) for run in runs.of("digits").values()]
        mean, error = np.mean([a for a, _ in rows]), np.sqrt(np.mean([b**2 for _, b in rows]) / len(rows))
        factor = m / (m - 1)
        words = f"m = {m}: {factor * mean:.3f} with the factor, {mean:.3f} without, 9 true"
        parts.append(Part(words, bool(abs(factor * mean - 9) <= 4 * factor * error and abs(mean - 9) > 4 * error)))
    return parts


def _linear(runs: Runs) -> list[Part]:
    errors = [curves["additive_error"] for curves in runs.of("digits").values()]
    words = f"f(a + b) differs from f(a) + f(b) by {each(errors, '.2g')} of its size: it is affine"
    return [Part(words, max(errors) <= 1e-10)]


def _panels(runs: Runs) -> list[Picture]:
    if not runs.has(("digits",)):
        return []
    rows = [run["biased_mean"] for run in runs.of("digits").values()]
    mean = np.mean(rows, 0)
    factor = np.array(SIZES) / (np.array(SIZES) - 1)
    lines = [Curve("with m/(m-1)", SIZES, list(factor * mean)), Curve("without", SIZES, list(mean))]
    return [
        Picture("Mean variance of batches from N(0, 9)", "batch size m", "variance", lines, True, level=(9, "true"))
    ]


ENTRY = Entry(
    name="inference",
    title="Inference with population statistics",
    source='Encyclopedia article "Batch normalization", Inference with batch-normalized networks',
    origin="MLP 64-30-10 on the digits, batches of 100, float64; batches of 2 to 32 normal numbers of variance 9",
    needs={INFERENCE: ("digits",)},
    statements=(
        Statement(
            "population",
            "At inference the layer is the transform with population mean and variance, averages over batches.",
            "The layer's output equals the formula, computed batch by batch from its inputs, to 1e-10.",
            lambda runs: _close(runs, "transform_error", "layer and formula"),
            n=5,
            exact=True,
        ),
        Statement(
            "deterministic",
            "The output then depends on the input alone.",
            "A sample alone and among others gives the same output to 1e-10.",
            lambda runs: _close(runs, "alone_error", "alone and together"),
            n=5,
            exact=True,
        ),
        Statement(
            "unbiased",
            "The population variance is m/(m-1) times the mean of the batches' variances.",
            "For m = 2 to 32: with the factor within 4 standard errors of the truth, without it farther.",
            _unbiased,
            n=5,
        ),
        Statement(
            "linear",
            "The transform at inference is essentially linear (read strictly).",
            "f(a + b) = f(a) + f(b) to 1e-10.",
            _linear,
            n=5,
            exact=True,
            means="Affine: gamma (x - E)/sqrt(Var + eps) + beta has a constant. Many say linear for that; whoever does "
            "will call the sentence right. docs/evidence/errata.md, E-BN-3.",
        ),
    ),
    panels=_panels,
)
