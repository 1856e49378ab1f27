r"""The length gamma of a direction: bisection on the slope d f(w, .)/d gamma.

    the root taken   the lowest (in f) of those where the slope goes from minus to plus; plus-to-minus is a maximum
    the bracket      expanded until the signs differ; the source gives no rule
    after T_s steps  (d_gamma f)^2 <= (zeta/mu)^2 4^-T_s |b - a|^2

Differs from the source: it prints 2^-T_s zeta |b - a| / mu^2, which changes by c^2 on the left and c on the right when
the loss is multiplied by c. It assumes that a finite length exists; for the sigmoid loss under the Gaussian model none
does (f falls towards P(z^T w > 0) for ever), so no length is found there, which is said.
Source: seed 003, Bisection(T_s, f, w).
"""

from collections.abc import Callable

import numpy as np

Slope = Callable[[float], float]

# In units of the margins' root mean square, which is 1 for ||w||_S = 1.
_LADDER = 2.0 ** np.arange(-10, 31)


def bisect(slope: Slope, low: float, high: float, *, steps: int = 200, small: float = 0.0) -> float:
    """A root between `low` (slope < 0) and `high` (slope >= 0): `steps` halvings, or until |slope| <= `small`.

    Halving ends by itself when low and high are neighbours in floating point.

    Example:
        >>> bisect(lambda g: g - 1.0, 0.0, 4.0)
        1.0
    """
    middle = 0.5 * (low + high)
    for _ in range(steps):
        middle = 0.5 * (low + high)
        at_middle = slope(middle)
        if abs(at_middle) <= small or middle in (low, high):
            break
        low, high = (middle, high) if at_middle < 0 else (low, middle)
    return middle


def lowest_length(
    slope: Slope, value: Callable[[float], float], *, convex: bool, reach: float = _LADDER[-1]
) -> float | None:
    """The first length: the lowest minimum on a ladder of lengths up to +-`reach`; None where the slope never turns.

    A convex f has one minimum, downhill from zero, and the ladder stops at it.
    """
    found = []
    for side in (-1.0, 1.0):
        previous, before = 0.0, side * slope(0.0)
        if convex and before >= 0:
            continue
        for rung in _LADDER[reach >= _LADDER]:
            here = side * slope(side * rung)
            # Strictly: a slope that underflows to zero has not turned.
            if before < 0 < here:
                low, high = sorted((side * previous, side * rung))
                found.append(bisect(slope, low, high))
                if convex:
                    break
            previous, before = rung, here
    return min(found, key=value) if found else None


def next_length(slope: Slope, start: float, width: float, *, small: float, reach: float = _LADDER[-1]) -> float | None:
    """The minimum downhill from `start`: the bracket doubles from `width`; None where the slope never turns."""
    here = slope(start)
    if abs(here) <= small:
        return start
    side = -1.0 if here > 0 else 1.0
    previous, width = start, max(width, 1e-12 * abs(start), 1e-300)
    while abs(previous) < reach:
        edge = min(max(start + side * width, -reach), reach)
        if side * slope(edge) > 0:
            low, high = sorted((previous, edge))
            return bisect(slope, low, high, small=small)
        previous, width = edge, 2.0 * width
    return None
