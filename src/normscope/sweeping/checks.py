"""Check a plan and report all its mistakes at once, before anything trains."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

from normscope import models
from normscope.messages import brief, quoted
from normscope.messages.choices import check_choice
from normscope.results.decoding import parsed

LOSS_NAMES = ("half_mse", "half_sse", "cross_entropy")
DTYPES = ("float32", "float64")
MODEL_NAMES = tuple(name for name in models.__all__ if name[0].isupper())
# Larger grids are taken for a mistake: they would fill the memory. Numbers up to LARGEST have finite squares.
MOST_CELLS, MOST_THREADS, LARGEST = 1_000_000, 1024, 1e100
DATA_NAMES = ("digits", "gaussian", "mnist", "cifar10")


class PlanError(ValueError):
    """A plan has mistakes; the message lists all of them."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n- ".join(["The plan cannot be trained:", *mistakes]))
        self.mistakes = tuple(mistakes)


def mistakes(plan: Any) -> Iterator[str]:
    """The mistakes in the numbers and names of a `Plan`, one sentence each."""
    yield from _numbers("learning_rates", plan.learning_rates, lambda x: 0 < x < math.inf, "positive and finite")
    allowed, words = _axis_range(plan.axis)
    yield from _numbers(f"values (of {plan.axis})", plan.values, allowed, words)
    yield from _numbers("seeds", plan.seeds, lambda x: 0 <= x < 2**63, "integers from 0 to 2^63 - 1", integers=True)
    for name in ("model", "data", "axis"):
        if not isinstance(getattr(plan, name), str) or not getattr(plan, name):
            yield f"{name} is a name; got {quoted(getattr(plan, name))}."
    grids = [len(part) for part in (plan.learning_rates, plan.values, plan.seeds) if isinstance(part, tuple)]
    if math.prod(grids) > MOST_CELLS:
        yield f"the grid has {math.prod(grids):,} trainings, and a plan at most {MOST_CELLS:,}. Split it into several."
    choices = {"compile": ("auto", "always", "never"), "mode": ("auto", "stacked", "looped")}
    for name, options in ({"loss": LOSS_NAMES, "dtype": DTYPES} | choices).items():
        yield from error_of(partial(check_choice, name, getattr(plan, name), options))
    for name, known in (("model", MODEL_NAMES), ("data", DATA_NAMES)):
        value = getattr(plan, name)
        if isinstance(value, str) and value and ":" not in value:
            yield from error_of(partial(check_choice, name, value, (*known, "path.py:name")))
    for name, low, high in (("momentum", 0, 1), ("weight_decay", 0, math.inf), ("bisect", 0, math.inf)):
        number = getattr(plan, name)
        if not is_number(number) or not low <= number < high:
            yield f"{name} must lie in [{low}, {high}); got {quoted(number)}."
    if not is_number(plan.explode) or not 1 < plan.explode < math.inf:
        yield f"explode is a finite multiple of the first loss, above 1; got {quoted(plan.explode)}."
    most = {"threads": MOST_THREADS}
    for name, least in (("batch_size", 1), ("epochs", 1), ("threads", 1), ("stream_seed", 0)):
        number = getattr(plan, name)
        if not is_number(number, integer=True) or not least <= number < 2**63:
            yield f"{name} is an integer from {least} on; got {quoted(number)}."
        elif number > most.get(name, number):
            yield f"{name} is at most {most[name]:,}; got {number}."
    if not isinstance(plan.tf32, bool):
        yield f"tf32 is true or false; got {quoted(plan.tf32)}."
    for name in ("arguments", "data_options"):
        yield from _table(name, getattr(plan, name))
    if isinstance(plan.arguments, dict) and isinstance(plan.axis, str):
        set_elsewhere = {
            "seed": "seeds",
            plan.axis: "values",
            **({"sigma_w2": "values"} if plan.axis == "sigma_w" else {}),
        }
        for name in set(plan.arguments) & set(set_elsewhere):
            yield f"arguments must not hold {name}: it comes from {set_elsewhere[name]}."


def error_of(check: Callable[[], Any]) -> Iterator[str]:
    """The message of a check that raises a ValueError; nothing if it passes."""
    try:
        check()
    except ValueError as error:
        yield str(error)


def _axis_range(axis: Any) -> tuple[Callable[[float], bool], str]:
    if axis == "momentum":
        return lambda x: 0 <= x < 1, "in [0, 1)"
    if axis in ("gamma", "sigma_w", "sigma_w2"):
        return lambda x: 0 < x < math.inf, "positive and finite"
    if axis == "weight_decay":
        return lambda x: 0 <= x < math.inf, "finite and not negative"
    return math.isfinite, "finite"


def _numbers(
    name: str, numbers: Any, allowed: Callable[[float], bool], words: str, *, integers: bool = False
) -> Iterator[str]:
    if not isinstance(numbers, tuple):
        yield f"{name} is a list of numbers; got {quoted(numbers)}."
        return
    if not numbers:
        yield f"{name} is empty: a grid needs at least one."
    wrong = [x for x in numbers if not is_number(x, integers) or not allowed(x) or abs(x) > LARGEST]
    if wrong:
        yield f"{name} must be {words}; got {brief(', '.join(map(quoted, wrong)))}."
    elif len(set(numbers)) < len(numbers):
        twice = sorted(x for x, count in Counter(numbers).items() if count > 1)
        yield f"{name} must differ; {brief(', '.join(map(quoted, twice)))} is there more than once."


def is_number(x: Any, integer: bool = False) -> bool:
    """Whether `x` is a Python or NumPy number (not nan) that fits into a float."""
    try:
        return isinstance(x, Integral if integer else Real) and not isinstance(x, bool) and float(x) == float(x)
    except OverflowError:
        return False


def _table(name: str, table: Any) -> Iterator[str]:
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
        yield f"{name} is a table of keyword arguments; got {quoted(table)}."
        return
    try:
        parsed(json.dumps(table, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        yield f"{name} must be plain numbers, texts, lists and tables: {brief(str(error))}."
