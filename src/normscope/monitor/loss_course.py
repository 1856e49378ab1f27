r"""The course of the loss over the snapshots: whether it rose again after it had fallen.

    low    = min_i max(l_i, l_{i+1})                   the lowest loss that two snapshots in a row stayed below
    now    = min(l_{n-1}, l_n)                         the loss that the last two snapshots stayed above
    noise  = 0.8-quantile of |l_{i+1} - l_i| / 1.81    of the batches; for a Gaussian its standard deviation
    fall   = l_1 - low,  rise = now - low

A rise is told if rise >= 0.2 fall, and rise > 6 noise. In a short run `noise` holds the fall itself; so a rise is told
as well if rise >= 0.5 fall after a steady fall, one that makes up nine tenths of all that the loss moved on the way.

Each snapshot has another batch, so one high loss tells nothing. The thresholds were chosen on made-up runs of 60
snapshots that do not fall: of 250 with Gaussian noise 1 got a warning at some snapshot, with exponential noise 6.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from normscope.stability.verdict import Verdict

ABOUT = "loss"
NOISES, SHARE = 6.0, 0.2
STEADY, HALF = 0.9, 0.5
# A quantile of the differences, and its value for a Gaussian of standard deviation 1: 1.2816 sqrt(2).
_QUANTILE, _OF_GAUSSIAN = 0.8, 1.8124
# Snapshots before the last two, from which on a rise is told.
_FEWEST = 3
_FORMULA = (
    f"rise over the lowest loss >= {SHARE:g} of the fall, and > {NOISES:g} times the noise of the batches or, after a "
    f"steady fall, >= {HALF:g} of it"
)
_SOURCE = "losses of the snapshots"


def loss_verdict(course: Sequence[tuple[int, float]]) -> Verdict:
    """The verdict on the last loss of a run, beside the lowest one before it.

    Args:
        course: step and loss of every snapshot so far, the present one last.

    Example:
        >>> fallen = [(0, 0.7), (10, 0.5), (20, 0.32), (30, 0.29), (40, 0.28)]
        >>> loss_verdict(fallen).good
        True
        >>> loss_verdict([*fallen, (50, 0.69), (60, 0.7)]).text[:60]
        'The loss rose from 0.29 at step 40 to 0.69 at step 60: 98 % '
    """
    step, last = course[-1]
    finite = [(s, loss) for s, loss in course if math.isfinite(loss)]
    losses = [loss for _, loss in finite]
    if not math.isfinite(last):
        before = f"; its lowest was {min(losses):.3g}" if losses else ""
        return Verdict(ABOUT, False, f"The loss is {last} at step {step}{before}.", "a finite loss", _SOURCE)
    if len(losses) < _FEWEST + 2:
        return Verdict(ABOUT, True, "Too few snapshots to tell a rise of the loss from noise.", _FORMULA, _SOURCE)
    pairs = list(itertools.pairwise(losses))
    low, place = min((max(pair), number + 1) for number, pair in enumerate(pairs))
    moves = np.abs(np.diff(losses))
    noise = float(np.quantile(moves, _QUANTILE)) / _OF_GAUSSIAN
    rise, fall = min(pairs[-1]) - low, max(losses[0] - low, 0.0)
    is_steady = place >= _FEWEST and fall >= STEADY * moves[:place].sum()
    if rise < SHARE * fall or not (rise > NOISES * noise or (is_steady and rise >= HALF * fall)):
        text = f"The loss, {last:.3g} at step {step}, is not far above its lowest so far, {low:.3g}."
        return Verdict(ABOUT, True, text, _FORMULA, _SOURCE)
    lost = f"{100 * rise / fall:.0f} % of its fall is lost" if fall else "it is above its first value"
    text = (
        f"The loss rose from {low:.3g} at step {finite[place][0]} to {low + rise:.3g} at step {step}: {lost}. Go back "
        "to weights from before the rise, and train with a lower learning rate or with clipping."
    )
    return Verdict(ABOUT, False, text, _FORMULA, _SOURCE)
