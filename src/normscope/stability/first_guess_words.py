"""The first guess in words: sentences for notes, verdicts and reports."""

import math

from normscope.loss_kinds import CROSS_ENTROPY, DIVERGES, MEANINGS, beyond_limit
from normscope.stability.first_guess_evidence import COST, COST_OF_THEORY, COST_WITHOUT
from normscope.stability.first_guess_rates import (
    bounded_rate,
    measured_share,
    rate_from_measurement,
    rate_from_theory,
    share_of,
)

# Points of test accuracy lost at worst, up to which the advice needs no grid around it.
_BEARABLE_POINTS = 2.0
_TASKS = " These tasks are MLPs and CNNs on digits, MNIST or CIFAR-10; transformers and regression were not tried."
_TASKS_WITHOUT = " These tasks are MLPs and CNNs on digits."
# Ratio of the rate to start with to another one from which a verdict notes that the other one is far below.
_SLOW_RATIO = 20.0
_BEYOND = " This rate is beyond eta*: networks with a normalizer train there, but not all: try less too."


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
    bound = bounded_rate(critical, eta_star, loss_kind, normalized)
    of_critical = measured_share(loss_kind, descent, normalized)
    is_half = rate != share_of(bound, of_critical)
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
        >>> beyond(0.1, 0.2, "squared"), beyond(0.3, 0.2, "squared")[:24], beyond(0.3, 0.2, CROSS_ENTROPY)
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
