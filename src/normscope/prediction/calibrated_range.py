"""The calibrated range of networks that get no warning; `remarks.USUAL` is the narrowest.

Fitted on the first draw of `benchmarks/calibration.py`, random networks over three seeds each, and judged once on the
second. A range wider than a factor of `USABLE` is no answer.
"""

from normscope.prediction.mode_eigenvalues import ModeEigenvalues
from normscope.prediction.walk import Walk

# Largest ratio of highest to lowest multiple with which a prediction names a learning rate.
USABLE = 3.0
# Sum of 1/width along the way of gradients, and correction for finite width, from which on the range is _SOME.
_NARROW, _CORRECTED, _SOME = 0.033, 1.3, (0.8, 1.5)
_WIDENED, _MORE = 1.5, (0.85, 1.9)
# Both at once in networks on vectors: layers have so few units that lambda differs by factors between seeds.
_DEEP, _FACTORS = 0.1, (0.5, 3.3)
# Data modes over the mean mode from which on the range is _DATA, or _BATCH_NORM under BatchNorm; bounded and odd
# activations have such. _CURVED: correction from which on, under BatchNorm with activations that are not two half
# lines, the range is _CURVED_SEEN. _STRETCHED: the same with and without BatchNorm, whatever the mode.
_CLOSE, _DATA, _BATCH_NORM = 0.8, (0.8, 1.4), (0.69, 1.4)
_CURVED, _CURVED_SEEN = 1.8, (0.5, 2.5)
_STRETCHED, _STRETCHED_SEEN = 2.5, (0.85, 2.35)
# Largest number of values that a unit of the first layer sees with which the range is _FEW_SEEN or _FEW_NARROW.
_FEW, _FEW_SEEN, _FEW_NARROW = 9, (0.69, 1.5), (0.69, 1.9)


def widen_range(walk: Walk, eigenvalues: ModeEigenvalues) -> None:
    """Widen the calibrated range by the sizes that the prediction itself has computed."""
    spread = max(row.spread[0] for row in walk.rows)
    top, infinite = max((eigenvalues.mean, eigenvalues.mean_infinite), (eigenvalues.data, eigenvalues.data_infinite))
    raised = top / infinite if infinite > 0 else 1.0
    if spread > _NARROW or raised > _CORRECTED:
        walk.remarks.widen(_SOME)
    if raised > _WIDENED:
        vectors = all(row.sites == 1 for row in walk.rows)
        walk.remarks.widen(_FACTORS if vectors and spread > _DEEP else _MORE)
    if raised > _STRETCHED and walk.met.curved:
        walk.remarks.widen(_STRETCHED_SEEN)
    if eigenvalues.data > _CLOSE * eigenvalues.mean:
        normalized = any(row.layer_type == "BatchNorm" for row in walk.rows)
        walk.remarks.widen(_BATCH_NORM if normalized else _DATA)
        if normalized and walk.met.curved and raised > _CURVED:
            walk.remarks.widen(_CURVED_SEEN)
    if any(row.of_data and row.inputs and row.inputs.channels * row.taps <= _FEW for row in walk.rows):
        walk.remarks.widen(_FEW_NARROW if spread > _NARROW else _FEW_SEEN)
