"""What a learning rate means beside eta*, worded for the loss at hand."""

import math

from normscope.loss_kinds import CROSS_ENTROPY, SQUARED
from normscope.stability.verdict import NOT_A_LIMIT, Verdict


def stability_verdict(
    lr: float,
    eta_star: float,
    *,
    kind: str,
    rule: str,
    source: str,
    residual: float,
    converged: bool,
    ends: tuple[float, float] = (math.nan, math.nan),
) -> Verdict:
    """Stable or not for the local quadratic; with cross-entropy being beyond eta* decides nothing.

    Args:
        ends: the Hessian's smallest and largest eigenvalue, nan where they are not known. A small negative one is usual
            in training; where it outweighs the largest, stability along the others decides nothing.

    Example:
        >>> options = {"rule": "eta* = 2 / lambda", "source": "", "residual": 1e-4, "converged": True}
        >>> stability_verdict(0.1, 0.2, kind="squared", **options).text
        'lr = 0.1 is 0.5 times eta* = 0.2: the local quadratic is stable.'
    """
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"A learning rate is a positive number; got {lr}.")
    below = lr < eta_star
    good: bool | None = below
    share = lr / eta_star if eta_star else math.inf
    text = f"lr = {lr:.3g} is {share:.2g} times eta* = {eta_star:.3g}: the local quadratic is "
    text += "stable." if below else "unstable."
    if math.isinf(eta_star):
        text = "The largest eigenvalue is not positive, so the local quadratic sets no learning rate a limit."
        good = None
    if kind == CROSS_ENTROPY:
        text += " " + NOT_A_LIMIT
        good = good if below else None
    elif not below and kind == SQUARED:
        text += " Expect the loss to rise along the top eigenvector before the network adapts, if it does."
    elif not below:
        text += " Whether training survives that depends on the loss; near a minimum it does not."
    lowest, highest = ends
    if lowest < 0 and -lowest > highest:
        text += (
            f" The Hessian's smallest eigenvalue, {lowest:.3g}, outweighs its largest, {highest:.3g}: along it the "
            "loss bends down, and every learning rate moves away."
        )
        good = None if below else good
    if not converged:
        text += f" (Not converged: the residual is {residual:.1e}.)"
    return Verdict("learning rate", good, text, rule, source)
