r"""The length gamma of a direction: a root of the slope d f(w, .)/d gamma where it goes from minus to plus.

    the root taken   the lowest (in f) of those from minus to plus; a plus-to-minus root is a maximum
    the bracket      expanded until the signs differ; the source gives no rule
    after T_s steps  (d_gamma f)^2 <= (zeta/mu)^2 4^-T_s |b - a|^2          of bisection

Newton's point, which the same exponential gives, takes the middle's place where it lies in the bracket and at least
halves the last move. That takes about two evaluations a length where bisection takes eight; where f is not convex,
bisection is used.

Differs from the source: it prints 2^-T_s zeta |b - a| / mu^2, which changes by c^2 on the left and c on the right when
the loss is multiplied by c. It assumes that a finite length exists; for the sigmoid loss under the Gaussian model none
does (f falls towards P(z^T w > 0) for ever), so no length is found there, and the result says so.
Source: the encyclopedia article, Bisection(T_s, f, w).
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from normscope.solve.problem import Point

P = TypeVar("P", bound=Point)

# In units of the margins' root mean square, which is 1 for ||w||_S = 1.
_LADDER = 2.0 ** np.arange(-10, 31)
FARTHEST = float(_LADDER[-1])
# Two lengths nearer than this are one: the slope between them is rounding.
_SAME = 4.0 * np.finfo(np.float64).eps


def bisect(at: Callable[[float], P], low: P, high: P, *, steps: int = 200, small: float = 0.0) -> P:
    """A root between `low` (slope < 0) and `high` (slope > 0): `steps` evaluations, or until |slope| <= `small`.

    Pure bisection where the points' bend is not positive.
    """
    here = low if abs(low.slope) < abs(high.slope) else high
    move = high.gamma - low.gamma
    for _ in range(steps):
        newton = -here.slope / here.bend if here.bend > 0.0 else np.inf
        inside = low.gamma < here.gamma + newton < high.gamma and abs(newton) <= 0.5 * abs(move)
        move = newton if inside else 0.5 * (low.gamma + high.gamma) - here.gamma
        # Newton's own move too: at the root that move is rounding, and points out of the bracket as often as into it.
        if min(abs(move), abs(newton)) <= _SAME * abs(here.gamma):
            break
        here = at(here.gamma + move)
        if _settled(here, small):
            break
        low, high = (here, high) if here.slope < 0.0 else (low, here)
    return here


def lowest_length(at: Callable[[float], P], *, convex: bool, reach: float = FARTHEST) -> P | None:
    """The lowest minimum on a ladder of lengths up to +-`reach`; None where the slope never turns.

    A convex f has one minimum, downhill from zero.
    """
    origin = at(0.0)
    if convex:
        return next_length(at, origin, reach=reach)
    minima = []
    for side in (-1.0, 1.0):
        last = origin
        for size in _LADDER[reach >= _LADDER]:
            here = at(float(side * size))
            # Strictly: a slope that underflows to zero has not turned.
            if side * last.slope < 0.0 < side * here.slope:
                minima.append(bisect(at, *sorted((last, here), key=lambda point: point.gamma)))
            last = here
    return min(minima, key=lambda point: point.value) if minima else None


def next_length(at: Callable[[float], P], start: P, *, small: float = 0.0, reach: float = FARTHEST) -> P | None:
    """The minimum downhill from `start`: Newton's point, then moves that double; None where the slope never turns."""
    here = start
    side = -1.0 if start.slope > 0.0 else 1.0
    move = 0.1 * abs(start.gamma) or float(_LADDER[0])
    while not _settled(here, small):
        if here is not start and abs(here.gamma) >= reach:
            return None
        newton = abs(here.slope) / here.bend if here.bend > 0.0 else 0.0
        move = newton if here is start and newton > 0.0 else max(2.0 * move, newton)
        edge = at(float(np.clip(here.gamma + side * move, -reach, reach)))
        if side * edge.slope > 0.0 and not _settled(edge, small):
            return bisect(at, *sorted((here, edge), key=lambda point: point.gamma), small=small)
        here = edge
    return here


def _settled(point: Point, small: float) -> bool:
    """A small slope is a minimum's where f bends upwards; a slope and a bend of zero are a flat tail's."""
    return abs(point.slope) <= small and point.bend > 0.0
