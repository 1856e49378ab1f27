"""Rates that follow from one look at the network before training: the first guess of `measure`, and half of eta*."""

from typing import Any

from opponents.named import Named
from task import Parts, Task

# Gradient passes of one product with the curvature matrix, and of the first pass with the search for the critical rate.
PER_PRODUCT, ONCE = 2, 8


def _measure(task: Task, parts: Parts) -> tuple[Any, float]:
    from normscope import measure

    optimizer = task.optimizer_of(parts.model, 1e-3)
    result = measure(parts.model, parts.loss_fn, parts.batches, forward=parts.forward, optimizer=optimizer)
    return result, PER_PRODUCT * result.products + ONCE


def first_guess(task: Task, parts: Parts, seed: int) -> Named:
    """The first guess of `measure`, over its default number of batches."""
    result, steps = _measure(task, parts)
    return Named(result.first_guess, steps, result.advice, result.first_guess_range)


def half_of_eta_star(task: Task, parts: Parts, seed: int) -> Named:
    """Half of the stability limit of the first batch."""
    result, steps = _measure(task, parts)
    return Named(result.eta_star / 2, steps)


ENTRANTS: dict[str, Any] = {"first guess": first_guess, "eta*/2": half_of_eta_star}
