"""Figure 1 of "Mean-field analysis of batch normalization": lambda_max and eta* over gamma, as printed and corrected.

    python examples/figure_1.py --out results/figure-1.json --picture docs/images/figure-1.png

No training and no data: the printed recursions beside `ns.predict`, at infinite width, for the paper's two networks
(MLP 784-1000-1000-1000-10, CNN 30/60/90 on 32 x 32 images), sigma_w^2 = 2, sigma_b^2 = 0.5, momentum 0.9. Corrected is
as trained, through BatchNorm's statistics; frozen with them held constant, which is what the paper set out to compute.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import normscope as ns
from normscope.report.drawing import draw
from normscope.report.sections.mean_field_figure_1 import figure_1_chart
from normscope.results import plain
from normscope.results.saving import save_figure
from normscope.theory import printed

MOMENTUM = 0.9
GAMMAS = [round(float(gamma), 4) for gamma in np.geomspace(0.1, 5, 25)]


def curves(
    paper: Callable[..., printed.Printed], build: Callable[..., nn.Module], shape: tuple[int, ...], batch_size: int
) -> list[dict[str, Any]]:
    lines = [
        _curve("none", "printed", [paper().lambda_max] * len(GAMMAS)),
        _curve("batch", "printed", [paper(gamma=gamma).lambda_max for gamma in GAMMAS]),
    ]
    networks = {"none": [build(norm="none")], "batch": [build(norm="batch", gamma=gamma) for gamma in GAMMAS]}
    readings = (
        ("none", "batch", "corrected"),
        ("batch", "batch", "corrected"),
        ("batch", "frozen", "corrected, frozen"),
    )
    for norm, stats, name in readings:
        values = [
            ns.predict(
                model, shape, "half_mse", batch_size=batch_size, stats=stats, parameters=_weights
            ).lambda_infinite
            for model in networks[norm]
        ]
        lines.append(_curve(norm, name, values * (len(GAMMAS) // len(values))))
    return lines


def _weights(name: str, parameter: nn.Parameter) -> bool:
    """The paper drops biases, gamma and beta."""
    return parameter.ndim > 1


def _curve(norm: str, theory: str, values: list[float]) -> dict[str, Any]:
    return {
        "norm": norm,
        "theory": theory,
        "lambda_max": values,
        "eta_star": [2 * (1 + MOMENTUM) / value for value in values],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path, required=True)
    args = parser.parse_args()

    def dense(gamma: float | None = None) -> printed.Printed:
        return printed.dense((784, 1000, 1000, 1000, 10), gamma=gamma)

    def convolutional(gamma: float | None = None) -> printed.Printed:
        return printed.convolutional((3, 30, 60, 90), (1024, 225, 49, 9), (9, 9, 9), gamma=gamma)

    result = {
        "schema": 1,
        "what": "lambda_max and eta* of the networks of Wei et al. 2019 over gamma, infinite width, 1/2 squared error",
        "gamma": GAMMAS,
        "momentum": MOMENTUM,
        "batch_size": args.batch_size,
        "networks": {
            "fully connected": curves(dense, ns.models.MLP, (784,), args.batch_size),
            "convolutional": curves(convolutional, ns.models.CNN, (3, 32, 32), args.batch_size),
        },
    }
    args.out.write_text(json.dumps(plain(result), indent=1, allow_nan=False) + "\n")
    save_figure(draw(figure_1_chart(result)), args.picture, dpi=150)


if __name__ == "__main__":
    main()
