"""The calibrated range of networks that get no warning; `remarks.USUAL` is the narrowest.

Fitted on the first draw of `benchmarks/calibration.py`, random networks over three seeds each, and judged once on the
second. A range wider than a factor of `USABLE` is no answer.
"""

from normscope.prediction.mode_eigenvalues import ModeEigenvalues
from normscope.prediction.walk import Walk

# Largest ratio of highest to lowest multiple with which a prediction names a learning rate.
USABLE = 3.0
# Each threshold is followed by the range of multiples that was measured from the threshold on.
# The sum of 1/width along the way of gradients, and the predicted correction for finite width.
_NARROW, _CORRECTED, _RANGE_NARROW_OR_CORRECTED = 0.033, 1.3, (0.8, 1.5)
_MUCH_CORRECTED, _RANGE_MUCH_CORRECTED = 1.5, (0.85, 1.9)
# In networks on vectors that are that narrow as well: layers have so few units that lambda differs by factors between
# seeds.
_VERY_NARROW, _RANGE_VERY_NARROW = 0.1, (0.5, 3.3)
# The data modes over the mean mode; bounded and odd activations have such.
_DATA_MODES, _RANGE_DATA_MODES, _RANGE_DATA_MODES_BATCH_NORM = 0.8, (0.8, 1.4), (0.69, 1.4)
# The correction under activations that are not two half lines: with BatchNorm and data modes as above, and for any.
_CURVED_BATCH_NORM, _RANGE_CURVED_BATCH_NORM = 1.8, (0.5, 2.5)
_CURVED, _RANGE_CURVED = 2.5, (0.85, 2.35)
# The number of values that a unit of the first layer sees, up to which the range is one of these two.
_FEW_INPUTS, _RANGE_FEW_INPUTS, _RANGE_FEW_INPUTS_NARROW = 9, (0.69, 1.5), (0.69, 1.9)


def widen_range(walk: Walk, eigenvalues: ModeEigenvalues) -> None:
    """Widen the calibrated range by the sizes that the prediction itself has computed."""
    spread = max(row.spread[0] for row in walk.rows)
    top, infinite = max((eigenvalues.mean, eigenvalues.mean_infinite), (eigenvalues.data, eigenvalues.data_infinite))
    raised = top / infinite if infinite > 0 else 1.0
    if spread > _NARROW or raised > _CORRECTED:
        walk.remarks.widen(_RANGE_NARROW_OR_CORRECTED)
    if raised > _MUCH_CORRECTED:
        vectors = all(row.sites == 1 for row in walk.rows)
        walk.remarks.widen(_RANGE_VERY_NARROW if vectors and spread > _VERY_NARROW else _RANGE_MUCH_CORRECTED)
    if raised > _CURVED and walk.met.curved:
        walk.remarks.widen(_RANGE_CURVED)
    if eigenvalues.data > _DATA_MODES * eigenvalues.mean:
        normalized = any(row.layer_type == "BatchNorm" for row in walk.rows)
        walk.remarks.widen(_RANGE_DATA_MODES_BATCH_NORM if normalized else _RANGE_DATA_MODES)
        if normalized and walk.met.curved and raised > _CURVED_BATCH_NORM:
            walk.remarks.widen(_RANGE_CURVED_BATCH_NORM)
    if any(row.of_data and row.inputs and row.inputs.channels * row.taps <= _FEW_INPUTS for row in walk.rows):
        walk.remarks.widen(_RANGE_FEW_INPUTS_NARROW if spread > _NARROW else _RANGE_FEW_INPUTS)
