r"""The first guess of a learning rate, from the initial network alone.

    measured             0.8 s_c with squared error, with momentum no more than 0.5 eta*;  0.1 s_c with cross-entropy
    no normalizer        0.8 min(s_c, eta*) with squared error
                         with cross-entropy 0.03 s_c for gradient descent, 0.01 s_c with momentum, 0.1 s_c for Adam
    by theory alone      0.5 eta*, for gradient descent

s_c is the critical rate: the learning rate at which the loss along the coming update is back at its value here. The
shares are measured, not derived. With squared error training diverges near s_c and not near eta*, which on real data
often belongs to few samples or pixels: an MLP with BatchNorm trained at 12 times eta* and diverged at twice s_c. With
cross-entropy training does not diverge there, and the best rate is about a tenth of s_c. Without a normalizer training
with squared error does end beyond eta* (an MLP with tanh at 2.6 eta* within 200 steps), so eta* bounds s_c there.

Without a normalizer and with cross-entropy no share of eta* serves: curvature at the start is small where the first
outputs are, and grows as the network learns. MLPs on digits diverged at 0.3 eta* where pixels lie between 0 and 1 (at
0.04 eta* with momentum), and trained at 3 eta* where pixels lie between 0 and 16. The shares of s_c were chosen on six
such MLPs and tried on CNNs, a residual MLP and a transformer (`benchmarks/without_batchnorm.py`, COST_WITHOUT). The
transformer diverged with momentum on one of two seeds, so with attention no rate is named.

Two failures cannot be seen in any curvature at the start. With momentum and squared error, small CNNs whose first
outputs are far off lose most channels in the first steps, though the loss falls from the first step on: 84 % of the
channels are dead at half of eta*, 31 % at the best rate. And the output of a network may jump, as GroupNorm over two
values makes it.

The rule stands in `first_guess_rates.py`, its words in `first_guess_words.py`, the numbers and how they were tested in
`first_guess_evidence.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from normscope.loss_kinds import CROSS_ENTROPY, LossKind
from normscope.stability.first_guess_evidence import OF_CRITICAL_RATE, TESTED_BATCH
from normscope.stability.first_guess_rates import rate_from_measurement
from normscope.stability.first_guess_words import advice_from_measurement

# Ratio of the named rate to eta* beyond which a note advises to try rates between the two.
_FAR_RATIO = 10.0
# Ratio of the batches' critical rates beyond which a note names their range.
_WIDE_RANGE_RATIO = 2.0
_ATTENDS = (
    "the model has attention and no normalizer, and a small transformer of that kind diverged at the share of the "
    "critical rate that other networks without a normalizer train at. Try rates with ns.tune"
)
# Measured with a ResNet with BatchNorm, 300 steps: 0.1 to 0.2 was named, and 0.01 was best.
_SMALL_BATCH = " With batches as small as these it may be 20 times too large: see the notes."
_ON_SMALL_BATCHES = (
    " With batches of 8 it was 10 to 20 times too large for a ResNet with BatchNorm (cross-entropy, momentum): try "
    "rates down to a twentieth of it."
)


@dataclass(frozen=True)
class FirstGuess:
    """The learning rate to start training with, its range over the batches, in words, and what is to be noted.

    Where there is no rate, it is nan and a note says why.
    """

    rate: float
    over_batches: tuple[float, float]
    advice: str
    notes: tuple[str, ...]


def first_guess_of(
    critical: float,
    by_batch: Sequence[float],
    eta_star: float,
    loss_kind: LossKind,
    descent: str,
    *,
    optimizer: str,
    unmeasured: str = "",
    normalized: bool = True,
    attends: bool = False,
    samples: int = TESTED_BATCH,
) -> FirstGuess:
    """The learning rate that `measure` names to start training with.

    Args:
        critical: the critical rate of the batches that lambda_max is of.
        by_batch: the critical rate of each batch.
        eta_star: the stability limit of the optimizer.
        loss_kind: the kind of the loss.
        descent: the kind of the optimizer, as `kind_of_descent` gives it.
        optimizer: the name of the optimizer's class.
        unmeasured: the reason where the critical rate was not measured, else empty.
        normalized: whether the network has a normalizer; without one, training with squared error diverges beyond eta*.
        attends: whether it has attention; without a normalizer and with cross-entropy there is then no rate.
        samples: the number of samples in the smallest batch.

    Example:
        >>> first_guess_of(0.5, (0.5,), 0.6, LossKind("squared"), "gradient descent", optimizer="SGD").rate
        0.4
        >>> other = LossKind("other", "it is linear")
        >>> first_guess_of(0.5, (0.5,), 0.6, other, "gradient descent", optimizer="SGD").notes[0][:47]
        'No learning rate to start with is named: shares'
    """
    rate = rate_from_measurement(critical, eta_star, loss_kind.name, descent, normalized)
    untested = attends and not normalized and loss_kind.name == CROSS_ENTROPY
    if math.isnan(rate) or untested:
        why = _why_none(critical, loss_kind, descent, optimizer, unmeasured)
        rate, why = math.nan, _ATTENDS if untested else why
        return FirstGuess(rate, (rate, rate), "", (f"No learning rate to start with is named: {why}.",))
    rates = [rate_from_measurement(each, eta_star, loss_kind.name, descent, normalized) for each in by_batch] or [rate]
    finite_rates = [each for each in rates if math.isfinite(each)] or [rate]
    span = min(finite_rates), max(finite_rates)
    notes = []
    if span[1] > _WIDE_RANGE_RATIO * span[0]:
        finite = [each for each in by_batch if 0 < each < math.inf]
        notes.append(
            f"The critical rate varies over these {len(rates)} batches, from {min(finite):.2g} to "
            f"{max(finite):.2g}, and with it the learning rate to start with: begin at the low end."
        )
    if missing := len(rates) - len(finite_rates):
        notes.append(f"{missing} of {len(rates)} batches {'has' if missing == 1 else 'have'} no critical rate.")
    if span[1] > _FAR_RATIO * eta_star:
        notes.append(
            f"The learning rate to start with is {span[1] / eta_star:.0f} times eta* = {eta_star:.3g}: along the "
            "coming update the loss bends far less than along the top eigenvector. Try rates between the two as well."
        )
    advice = advice_from_measurement(critical, eta_star, loss_kind.name, descent, span, normalized)
    if samples < TESTED_BATCH:
        is_small = 2 * samples < TESTED_BATCH
        advice += _SMALL_BATCH if is_small else ""
        notes.append(_on_batches(samples) + (_ON_SMALL_BATCHES if is_small else ""))
    return FirstGuess(rate, span, advice, tuple(notes))


def _on_batches(samples: int) -> str:
    return (
        f"All evidence for the learning rate to start with is from batches of {TESTED_BATCH} samples; here the "
        f"smallest batch has {samples}."
    )


def _why_none(critical: float, loss_kind: LossKind, descent: str, optimizer: str, unmeasured: str) -> str:
    if loss_kind.name not in OF_CRITICAL_RATE:
        return "shares of the critical rate are known for cross-entropy and squared error, and this loss is neither"
    if not descent:
        return f"shares of the critical rate are known for SGD, Adam and AdamW, and not for {optimizer}"
    if critical == 0:
        return "the loss rises at every step tried along the coming update, so there is no critical rate"
    if math.isinf(critical):
        return "no rise of the loss was found along the coming update, so there is no critical rate"
    return unmeasured or "the critical rate was not measured"
