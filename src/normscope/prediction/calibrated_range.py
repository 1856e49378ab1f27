"""The calibrated range: between which multiples of the prediction lambda_max was measured on similar networks.

`remarks.USUAL` is the narrowest range. `widen_range` widens it for networks whose prediction is less accurate. The
ranges here are for networks without a warning. Each range was fitted on the first draw of `benchmarks/calibration.py`
(random networks, three seeds each) and tested once on the second draw. A prediction whose range is wider than a factor
of `USABLE` names no learning rate.
"""

from normscope.prediction.mode_eigenvalues import ModeEigenvalues
from normscope.prediction.walk import Walk

# Largest ratio of the range's upper to its lower end with which a prediction still names a learning rate.
USABLE = 3.0
# Each threshold is followed by the range that was measured above the threshold.
# Narrow layers: the sum of 1/width on the path of the gradient. Corrected: lambda_max over its value at infinite width.
_NARROW, _CORRECTED, _RANGE_NARROW_OR_CORRECTED = 0.033, 1.3, (0.8, 1.5)
_MUCH_CORRECTED, _RANGE_MUCH_CORRECTED = 1.5, (0.85, 1.9)
# The same correction in networks on vectors whose layers have about ten units: lambda_max then differs by factors
# between seeds.
_VERY_NARROW, _RANGE_VERY_NARROW = 0.1, (0.5, 3.3)
# Ratio of the data modes to the mean mode. Bounded and odd activations, such as tanh, have large data modes.
_DATA_MODES, _RANGE_DATA_MODES, _RANGE_DATA_MODES_BATCH_NORM = 0.8, (0.8, 1.4), (0.69, 1.4)
# The correction in networks whose activation is not made of two half lines. First: with BatchNorm and data modes above
# the threshold. Second: in all such networks.
_CURVED_BATCH_NORM, _RANGE_CURVED_BATCH_NORM = 1.8, (0.5, 2.5)
_CURVED, _RANGE_CURVED = 2.5, (0.85, 2.35)
# Largest number of inputs to a unit of the first layer that counts as few. The second range is for narrow layers.
_FEW_INPUTS, _RANGE_FEW_INPUTS, _RANGE_FEW_INPUTS_NARROW = 9, (0.69, 1.5), (0.69, 1.9)


def widen_range(walk: Walk, eigenvalues: ModeEigenvalues) -> None:
    """Widen the calibrated range according to the widths, the correction and the modes of this prediction."""
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
