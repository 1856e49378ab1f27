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

How the shares were chosen: on the ten tasks of the entry `advice` (`normscope reproduce`). With one task left out at a
time, the best share of s_c over the others is 0.85 each time with squared error and 0.08 to 0.11 with cross-entropy; it
costs the task left out at most 1.5 and 2.0 points. The best share of eta* moves by half and more, and costs up to 37
points. Training diverges near the best share, so a little less is taken with squared error.

How they were tested: on ten other tasks, `advice-held-out`. There 0.8 s_c lost 40 points on one task, which led to the
half of eta*. `advice-held-out/settled` tests the whole rule on five more tasks, and fails on two. COST keeps the
results of all tasks with a normalizer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from normscope.loss_kinds import CROSS_ENTROPY, DIVERGES, MEANINGS, SQUARED, LossKind, beyond_limit

OF_CRITICAL_RATE = {SQUARED: 0.8, CROSS_ENTROPY: 0.1}
OF_ETA_STAR = 0.5
PLAIN, MOMENTUM, ADAM = "gradient descent", "momentum", "Adam"
# The shares of the critical rate without a normalizer and with cross-entropy.
WITHOUT_NORMALIZER = {PLAIN: 0.03, MOMENTUM: 0.01, ADAM: 0.1}
# By loss and optimizer: the number of tasks with a normalizer, and the points of test accuracy lost against the best
# rate of a grid, mean of seeds, in the median and at worst. A test compares these numbers with the stored results.
COST = {
    (SQUARED, PLAIN): (3, 0.0, 0.4),
    (SQUARED, MOMENTUM): (7, 2.1, 36.9),
    (SQUARED, ADAM): (1, 0.5, 0.5),
    (CROSS_ENTROPY, PLAIN): (1, 0.6, 0.6),
    (CROSS_ENTROPY, MOMENTUM): (7, 1.7, 48.7),
    (CROSS_ENTROPY, ADAM): (4, 1.1, 1.2),
}
# The same for networks without a normalizer and with cross-entropy, on digits; 200 steps.
COST_WITHOUT = {PLAIN: (9, 1.5, 7.2), MOMENTUM: (9, 1.1, 3.1), ADAM: (9, 1.1, 1.9)}
COST_OF_THEORY = {SQUARED: (10, 3.0, 41.9), CROSS_ENTROPY: (8, 0.5, 48.5)}
# Points of test accuracy lost at worst, up to which the advice needs no grid around it.
_BEARABLE_POINTS = 2.0
# Ratio of the named rate to eta* beyond which a note advises to try rates between the two.
_FAR_RATIO = 10.0
# Ratio of the batches' critical rates beyond which a note names their range.
_WIDE_RANGE_RATIO = 2.0
# The number of samples in a batch with which the shares were chosen and tested. Below it a note says so; below half of
# it the note also tells what was seen with batches of 8.
TESTED_BATCH = 128
_TASKS = " These tasks are MLPs and CNNs on digits, MNIST or CIFAR-10; transformers and regression were not tried."
_TASKS_WITHOUT = " These tasks are MLPs and CNNs on digits."
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
# Ratio of the rate to start with to another one from which a verdict notes that the other one is far below.
_SLOW_RATIO = 20.0
_BEYOND = " This rate is beyond eta*: networks with a normalizer train there, but not all: try less too."


def kind_of_descent(optimizer: torch.optim.Optimizer | None, settings: Mapping[str, Any]) -> str:
    """The kind of the optimizer: one of the three, or empty. settings: those of the parameter group in question."""
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return ADAM
    if optimizer is not None and not isinstance(optimizer, torch.optim.SGD):
        return ""
    return MOMENTUM if settings["momentum"] else PLAIN


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
        >>> first_guess_of(0.5, (0.5,), 0.6, LossKind(SQUARED), PLAIN, optimizer="SGD").rate
        0.4
        >>> first_guess_of(0.5, (0.5,), 0.6, LossKind("other", "it is linear"), PLAIN, optimizer="SGD").notes[0][:47]
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


def rate_from_measurement(
    critical: float, eta_star: float, loss_kind: str, descent: str, normalized: bool = True
) -> float:
    """The rate to start with; nan where there is no critical rate, and for losses and optimizers not tried.

    Example:
        >>> rate_from_measurement(0.5, 0.6, SQUARED, PLAIN), rate_from_measurement(0.5, 0.6, SQUARED, MOMENTUM)
        (0.4, 0.3)
        >>> rate_from_measurement(0.5, 0.25, SQUARED, PLAIN, normalized=False)
        0.2
        >>> rate_from_measurement(0.5, 0.25, CROSS_ENTROPY, MOMENTUM, normalized=False)
        0.005
    """
    if (loss_kind, descent) not in COST:
        return math.nan
    rate = _share(
        _bounded(critical, eta_star, loss_kind, normalized), _share_of_critical(loss_kind, descent, normalized)
    )
    return min(rate, OF_ETA_STAR * eta_star) if (loss_kind, descent) == (SQUARED, MOMENTUM) else rate


def share_of_critical_rate(critical: float, loss_kind: str) -> float:
    """A share of the critical rate; nan where there is none or the loss is another.

    Example:
        >>> share_of_critical_rate(0.5, SQUARED), share_of_critical_rate(math.inf, SQUARED)
        (0.4, nan)
    """
    return _share(critical, OF_CRITICAL_RATE.get(loss_kind, math.nan))


def _share_of_critical(loss_kind: str, descent: str, normalized: bool) -> float:
    if loss_kind == CROSS_ENTROPY and not normalized:
        return WITHOUT_NORMALIZER[descent]
    return OF_CRITICAL_RATE[loss_kind]


def rate_from_theory(eta_star: float) -> float:
    """The rate for gradient descent where only eta* of the theory is known: half of it."""
    return _share(eta_star, OF_ETA_STAR)


def advice_from_measurement(
    critical: float,
    eta_star: float,
    loss_kind: str,
    descent: str,
    over_batches: tuple[float, float] | None = None,
    normalized: bool = True,
) -> str:
    """`first_guess` in words, as a range over the batches where it has one; empty where there is none."""
    rate = rate_from_measurement(critical, eta_star, loss_kind, descent, normalized)
    if math.isnan(rate):
        return ""
    low, high = over_batches or (rate, rate)
    critical_rate = f"the critical rate {critical:.2g}" if low == high else "the critical rate of each batch"
    bound = _bounded(critical, eta_star, loss_kind, normalized)
    of_critical = _share_of_critical(loss_kind, descent, normalized)
    is_half = rate != _share(bound, of_critical)
    share = f"{of_critical:g} times"
    how_named = f"half of eta*, below {critical_rate}" if is_half else f"{share} {critical_rate}"
    if bound != critical and not is_half:
        how_named = f"{share} eta*, since there is no normalizer"
    of = f"{MEANINGS[loss_kind].words}, {descent}"
    if loss_kind == CROSS_ENTROPY and not normalized:
        tested = _tested(of, *COST_WITHOUT[descent], networks="without a normalizer", tasks_are=_TASKS_WITHOUT)
    else:
        tested = _tested(of, *COST[loss_kind, descent])
    named = in_digits(low, high)
    return f"To start training with: {named}, {how_named}. {tested}{beyond(rate, eta_star, loss_kind)}"


def _bounded(critical: float, eta_star: float, loss_kind: str, normalized: bool) -> float:
    """The critical rate, but no more than eta* where a network without a normalizer diverges beyond eta*."""
    # Measured with an MLP with tanh and without a normalizer: eta* 0.74, 0.8 s_c 1.9, nan within 200 steps at 1.9.
    if normalized or beyond_limit(loss_kind) != DIVERGES or not 0 < critical < math.inf:
        return critical
    return min(critical, eta_star)


def in_digits(least: float, most: float) -> str:
    """A learning rate, or a range of them, in the one digit that is known.

    Example:
        >>> in_digits(0.0432, 0.0432), in_digits(0.0432, 0.126), in_digits(31.0, 31.0)
        ('0.04', '0.04 to 0.1', '30')
    """
    low, high = (f"{float(f'{rate:.0e}'):g}" for rate in (least, most))
    return low if low == high else f"{low} to {high}"


def beyond(rate: float, eta_star: float, loss_kind: str) -> str:
    """A warning about a rate beyond eta*; empty where none is needed.

    Example:
        >>> beyond(0.1, 0.2, SQUARED), beyond(0.3, 0.2, SQUARED)[:24], beyond(0.3, 0.2, CROSS_ENTROPY)
        ('', ' This rate is beyond eta', '')
    """
    return _BEYOND if beyond_limit(loss_kind) == DIVERGES and rate > eta_star else ""


def also_beyond(over_batches: tuple[float, float], eta_star: float, critical: float) -> str:
    """A sentence for a verdict that calls a rate unstable and names one beyond eta* all the same; empty otherwise.

    Example:
        >>> also_beyond((0.1, 0.2), 0.05, 2.0)[:44], also_beyond((0.01, 0.02), 0.05, 2.0)
        (' This is beyond eta* too: eta* is a limit of', '')
    """
    if not over_batches[1] > eta_star:
        return ""
    return (
        " This is beyond eta* too: eta* is a limit of the top eigenvector alone, and along the coming update the loss "
        f"is back at its value here only at the critical rate {critical:.2g}."
    )


def advice_from_theory(eta_star: float, loss_kind: str) -> str:
    """`rate_from_theory` in words; empty where there is none."""
    rate = rate_from_theory(eta_star)
    if math.isnan(rate):
        return ""
    tested = _tested(MEANINGS[loss_kind].words, *COST_OF_THEORY[loss_kind])
    return f"To start training with: {in_digits(rate, rate)}, half of eta*. {tested}"


def _tested(
    of: str, tasks: int, median: float, worst: float, *, networks: str = "with a normalizer", tasks_are: str = _TASKS
) -> str:
    on = "one task" if tasks == 1 else f"{tasks} tasks"
    told = f"From initial weights, on {on} {networks} ({of}), this cost {median:.1f} points of test "
    told += f"accuracy against a grid in the median and {worst:.1f} at worst"
    return told + ("." if worst <= _BEARABLE_POINTS else ": try rates around it too.") + tasks_are


def far_below(lr: float, least: float) -> str:
    """A sentence on a rate that is stable and needlessly small; empty for others, and where no rate is named.

    Example:
        >>> far_below(0.001, 0.04), far_below(0.01, 0.04), far_below(0.001, math.nan)
        (' Note: lr = 0.001 is 40 times below it, so training may be slow.', '', '')
    """
    if not least > _SLOW_RATIO * lr:
        return ""
    return f" Note: lr = {lr:.3g} is {least / lr:.0f} times below it, so training may be slow."


def first_guess_sentence(least: float, most: float | None = None) -> str:
    """The last sentence of a verdict, which names the rate to start with.

    Example:
        >>> first_guess_sentence(0.0432), first_guess_sentence(0.0432, 0.1), first_guess_sentence(math.nan)
        (' To start training with: 0.04.', ' To start training with: 0.04 to 0.1.', '')
    """
    return "" if math.isnan(least) else f" To start training with: {in_digits(least, least if most is None else most)}."


def _share(rate: float, share: float) -> float:
    return share * rate if 0 < rate < math.inf else math.nan
