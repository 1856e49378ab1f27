"""The lambda of a loss over that of half_mse: a constant for squared errors, by softmax for cross-entropy."""

from normscope.loss_kinds import CROSS_ENTROPY, usually_survives
from normscope.losses.known_losses import loss_named
from normscope.prediction.kernels.field import Field
from normscope.prediction.walk import Walk
from normscope.theory.softmax import curvatures

# Mean square of the part of the outputs that samples do not share. From the first number on, lambda with cross-entropy
# was measured in a wider range of multiples of the prediction; beyond the second, softmax differs much between samples.
_UNEQUAL_OUTPUTS, _SATURATED_OUTPUTS = 0.4, 2.5
_RANGE, _RANGE_UNEQUAL = (0.85, 1.5), (0.85, 2.2)


def loss_factor(walk: Walk, loss: str, out: Field) -> float:
    """lambda of the loss over lambda of half_mse, for the output of largest curvature; sets `walk.loss_heights`."""
    outputs, over_half_mse = out.shape[0], loss_named(loss).over_half_mse
    if over_half_mse is not None:
        return over_half_mse(walk.batch, outputs)
    if outputs == 1:
        raise ValueError(
            'Cross-entropy needs at least two outputs; the model has one. For a regression take loss="half_mse" '
            '(--loss half_mse) or "mse".'
        )
    heights = curvatures(outputs, *_moments(out))
    walk.loss_heights = heights / heights[0]
    return float(heights[0])


def note_cross_entropy(walk: Walk, out: Field, factor: float) -> None:
    """Note the curvature of cross-entropy over half_mse's, widen the calibrated range, and warn of unequal outputs."""
    q, q_xy = _moments(out)
    unshared = q - q_xy
    walk.remarks.note(
        f"Cross-entropy: its curvature is {factor:.3g} of half_mse's here, where outputs have a mean square of "
        f"{q:.3g}. {usually_survives(CROSS_ENTROPY)}"
    )
    walk.remarks.widen(_RANGE if unshared < _UNEQUAL_OUTPUTS else _RANGE_UNEQUAL)
    if unshared > _SATURATED_OUTPUTS:
        walk.remarks.warn(
            f"Outputs differ between samples by a mean square of {unshared:.2g}, so that softmax is flat for some and "
            "bent for others, and the theory takes their mean: lambda was measured at 1.4, 2, 3.7 and 8.4 times the "
            "answer with 3, 6, 23 and 140 under BatchNorm, and at 1.3 and 1.6 times with 34 and 210 without a "
            "normalizer. Measure instead, or make the last weights smaller.",
            (0.9, 9.0),
        )


def _moments(out: Field) -> tuple[float, float]:
    """Mean square of the outputs, and mean product of two samples' outputs."""
    sites, kernel = out.sites, out.parts[0].kernel
    q = float(sites.diagonal(kernel).mean())
    return q, float(sites.mix(kernel).mean() * sites.batch - q) / max(sites.batch - 1, 1)
