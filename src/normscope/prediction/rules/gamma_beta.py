"""A normalizer's scale gamma and shift beta: their values by channel, and what they add to kernels and to lambda.

All normalizers compute gamma z + beta from normalized values z. The rules in `batch_norm.py` and `sample_norms.py`
share these functions.
"""

import math

import torch
from torch import Tensor

from normscope.prediction.kernels.cotangent import Cotangent
from normscope.prediction.kernels.field import Field
from normscope.prediction.layer_row import LayerRow
from normscope.prediction.refusals import UnknownOperation
from normscope.prediction.rules.weighted_sums import NARROW
from normscope.prediction.walk import Walk
from normscope.theory.gradient_overlaps import Origin
from normscope.theory.site_pairs import average

_LEAST_SPREAD = 0.05
# Effective number of channels, where gamma differs between them, below which lambda was measured far off.
_FEWEST_CHANNELS = 10


def channel_values(x: Field, values: Tensor | None, otherwise: float) -> list[Tensor]:
    """The values of gamma, beta or a running statistic by channel, one tensor for each part of the field.

    Args:
        x: the field that the layer reads.
        values: the layer's tensor, or None.
        otherwise: the value of all channels where the layer has no such tensor.
    """
    if values is None:
        return [torch.full((part.channels,), otherwise, dtype=torch.float64) for part in x.parts]
    if values.numel() != x.channels:
        raise ValueError(f"normalizes {values.numel()} channels and gets {x.channels}")
    if values.grad_fn is not None:
        raise UnknownOperation("has a gamma or beta that is computed from parameters, which has no map here")
    own = values.detach().to("cpu", torch.float64).flatten()
    # A sum is finite only where all of its terms are.
    if not math.isfinite(float(own.sum())):
        raise ValueError("has a gamma, beta or running statistic that is not finite. Initialize it, or load it again")
    return list(own.split([part.channels for part in x.parts])) if len(x.parts) > 1 else [own]


def mean_of_squares(values: Tensor) -> float:
    return float(values.dot(values)) / len(values)


def gamma_beta(
    walk: Walk, name: str, x: Field, gamma: Tensor | None, beta: Tensor | None, eps: float
) -> list[tuple[float, Tensor]]:
    """mean(gamma^2) and beta by channel, for each part; refuses an eps that is negative or not finite."""
    if not 0 <= eps < math.inf:
        raise ValueError(f"has an eps of {eps}, and takes one of at least 0")
    gammas, betas = channel_values(x, gamma, 1.0), channel_values(x, beta, 0.0)
    squares = [mean_of_squares(values) for values in gammas]
    for values, square in zip(gammas, squares, strict=True):
        size = average(values.abs())
        if square - size**2 > _LEAST_SPREAD**2 * size**2:
            walk.remarks.note("gamma differs between channels; its mean square was taken for all.", name)
            _check_count(walk, name, len(values), len(values) * square**2 / average(values**4))
    if gamma is not None and not any(squares):
        walk.remarks.warn(
            f"{name}: gamma is zero, so it gives beta whatever comes in, and what lies before it gets no gradient "
            "through it: lambda_max has no part of that and rises as gamma moves. Measure again after some steps."
        )
    return list(zip(squares, betas, strict=True))


def _check_count(walk: Walk, name: str, channels: int, counted: float) -> None:
    """Warn where few channels have most of gamma; counted: their effective number (sum gamma^2)^2 / sum gamma^4."""
    if counted < NARROW:
        walk.remarks.warn(
            f"{name}: gamma differs so much between channels that {channels} of them count as {counted:.1f}, outside "
            "the theory's reach, which is many channels: lambda was measured at 1.0 to 1.9 times the answer where 10 "
            "to 30 count, and at 1.1 to 15 times below. Measure instead.",
            (0.9, 1.9) if counted >= _FEWEST_CHANNELS else (0.9, 15.0),
        )


def tangent_after(walk: Walk, before: Tensor, kernel: Tensor, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
    """The tangent kernel after a scale and a shift, with the parts that gamma and beta add where they are trained.

    Args:
        walk: the walk, which knows the trained parameters.
        before: the tangent kernel of two samples that comes from the weights before gamma.
        kernel: the kernel of two samples of the values that gamma multiplies.
        gamma: the scale, or None.
        beta: the shift, or None.
    """
    tangent = before + kernel if walk.trains(gamma) else before
    return tangent + 1.0 if walk.trains(beta) else tangent


def held_pair_before(
    walk: Walk, arriving: Tensor, back: Tensor | float, value: Tensor | float, hat: Tensor | float, gamma: Tensor | None
) -> Tensor:
    """The held pair (gradient and drift) before a normalizer, from the pair after it.

    The drift comes back through the normalized values, and through the part that a trained gamma adds to the tangents.

    Args:
        walk: the walk, which knows the trained parameters.
        arriving: the held pair at the normalizer's output.
        back: the factor of the gradient's kernel.
        value: the factor of the drift: the derivative of the output's kernel with respect to the input's.
        hat: the derivative of the kernel of normalized values, which gamma multiplies, with respect to the input's.
        gamma: the scale, or None.
    """
    g, drift = arriving.unbind(0)
    return torch.stack([g * back, drift * value + g * hat if walk.trains(gamma) else drift * value])


def directions(walk: Walk, out: Field, gamma: Tensor | None, beta: Tensor | None) -> tuple[tuple[float, float], ...]:
    """The directions of the gradients of gammas and betas: pairs (number of directions, share of each pair of them).

    Each channel has one gamma and one beta. If both are trained and their gradients are correlated, their sum has a
    larger share of lambda than their difference. Below a sum of tensors gradients are taken as independent.

    Args:
        walk: the walk, which knows the trained parameters.
        out: the field after the normalizer.
        gamma: the scale, or None.
        beta: the shift, or None.
    """
    if not (walk.trains(gamma) and walk.trains(beta)):
        return ((float(out.channels), 1.0),)
    correlations = [abs(part.readers.gamma_beta_correlation or 0.0) * part.channels for part in out.parts]
    common = sum(correlations) / out.channels
    return (out.channels, (1 + common) / 2), (out.channels, (1 - common) / 2)


def handed_to_beta(walk: Walk, row: LayerRow, out: Field, cotangent: Cotangent, beta: Tensor | None) -> Origin | None:
    """The overlaps of samples' own gradients (`Cotangent.origin`) before a normalizer.

    beta sees the same draw of gradients as the layers below, and so does gamma as far as it is correlated with beta.
    The row gets this part of their share.
    """
    cotangent = walk.tape.drawn(cotangent, out)
    if cotangent.origin is not None and row.share is not None and walk.trains(beta):
        (_, part), *rest = row.columns
        row.hand_down(cotangent.origin, float(row.share[1]) * part * walk.batch)
        row.columns = tuple(rest)
    return cotangent.origin
