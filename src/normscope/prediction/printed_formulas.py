"""The formulas as printed by Wei et al. 2019, for networks of linear maps, convolutions, BatchNorm and ReLU."""

import itertools
import math
from typing import Any

from normscope.prediction.kernels.field import Field
from normscope.prediction.layer_row import LayerRow
from normscope.prediction.mode_eigenvalues import ModeEigenvalues
from normscope.prediction.walk import Walk
from normscope.theory import printed

_KNOWN_OPERATIONS = ("linear", "conv2d", "batchnorm1d", "batchnorm2d", "relu", "flatten", "view", "reshape", "identity")


def as_printed(walk: Walk, x: Field) -> ModeEigenvalues:
    """The sum of Claim 3.1 for the variances, gammas and sizes of the network; fills order parameters into the rows."""
    others = sorted({called for called in walk.met.called if called.lower() not in _KNOWN_OPERATIONS})
    layers = [row for row in walk.rows if row.inputs is not None]
    relus = sum(called.lower() == "relu" for called in walk.met.called)
    convolutions = sum(row.layer_type == "Conv2d" for row in layers)
    if others or relus != len(layers) - 1 or any(row.layer_type == "Conv2d" for row in layers[convolutions:]):
        raise ValueError(
            'theory="paper" is printed for convolutions followed by linear maps, with ReLU (and BatchNorm before it) '
            f"after all but the last; this network has {', '.join(others) or 'another order of them'}. Use "
            'theory="corrected".'
        )
    solution = _printed(walk, layers, convolutions, x)
    walk.remarks.notes += [*solution.conventions, *solution.notes]
    walk.remarks.note("Statistics of BatchNorm are constants in the printed theory, whatever stats= says.")
    shares = {}
    for i, row in enumerate(layers):
        row.numbers.update(
            q=solution.q[i],
            q_xy=solution.q_xy[i],
            qh=solution.q_hat[i],
            qh_xy=solution.q_hat_xy[i],
            qt=solution.q_tilde[i],
            qt_xy=solution.q_tilde_xy[i],
        )
        shares[row] = (solution.f[i], math.nan)
    return ModeEigenvalues(solution.lambda_max, -math.inf, solution.lambda_max, -math.inf, shares)


def _printed(walk: Walk, layers: list[LayerRow], convolutions: int, x: Field) -> Any:
    settings: dict[str, Any] = {
        "sigma_w2": [row.numbers["sigma_w2"] for row in layers],
        "sigma_b2": [row.numbers["sigma_b2"] for row in layers],
        "gamma": _gammas(walk, layers),
        "q0": layers[0].numbers["qh"],
        "q0_xy": layers[0].numbers["qh_xy"],
    }
    widths = [int(row.numbers["width"]) for row in layers]
    assert layers[0].inputs is not None
    first = layers[0].inputs.channels
    if not convolutions:
        return printed.dense([first * (1 if x.flat else x.sites.count), *widths], **settings)
    stack = layers[:convolutions]
    return printed.convolutional(
        [first, *widths[:convolutions]],
        [x.sites.count, *(row.sites for row in stack)],
        [row.taps for row in stack],
        widths[convolutions:-1],
        **settings,
    )


def _gammas(walk: Walk, layers: list[LayerRow]) -> list[float | None]:
    """gamma of the BatchNorm between each layer and the next; None where there is no BatchNorm."""
    places = [next(i for i, row in enumerate(walk.rows) if row is layer) for layer in layers]
    gammas: list[float | None] = []
    for here, there in itertools.pairwise(places):
        between = [row.numbers["gamma2"] for row in walk.rows[here + 1 : there] if "gamma2" in row.numbers]
        gammas.append(math.sqrt(between[0]) if between else None)
    return gammas
