"""The verdict on a learning rate beside eta*, worded for the loss at hand."""

import math

from normscope.loss_kinds import SURVIVES, beyond_limit, outlook, usually_survives
from normscope.stability.verdict import Verdict


def stability_verdict(
    lr: float,
    eta_star: float,
    *,
    loss_kind: str,
    rule: str,
    source: str,
    residual: float,
    converged: bool,
    ends: tuple[float, float] = (math.nan, math.nan),
) -> Verdict:
    """A verdict on whether the local quadratic is stable, and what that means for training with this kind of loss.

    Args:
        ends: the Hessian's smallest and largest eigenvalue, nan where they are not known. A small negative eigenvalue
            is usual in training; where it outweighs the largest, stability along the others decides nothing.

    Example:
        >>> options = {"rule": "eta* = 2 / lambda", "source": "", "residual": 1e-4, "converged": True}
        >>> stability_verdict(0.1, 0.2, loss_kind="squared", **options).text
        'The local quadratic is stable: lr = 0.1 is 0.5 times eta* = 0.2.'
    """
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"A learning rate is a positive number; got {lr}.")
    below = lr < eta_star
    good: bool | None = below
    share = lr / eta_star if eta_star else math.inf
    text = f"The local quadratic is {'stable' if below else 'unstable'}: "
    text += f"lr = {lr:.3g} is {share:.2g} times eta* = {eta_star:.3g}."
    if math.isinf(eta_star):
        text = "The local quadratic limits no learning rate: its largest eigenvalue is not positive."
        good = None
    if beyond_limit(loss_kind) == SURVIVES:
        text += " " + usually_survives(loss_kind)
        good = good if below else None
    elif not below:
        text += " " + outlook(
            loss_kind,
            diverges="Expect the loss to rise along the top eigenvector; the network may adapt later.",
            uncertain="Training may survive this, depending on the loss; near a minimum it does not.",
        )
    lowest, highest = ends
    if lowest < 0 and -lowest > highest:
        text += (
            " The loss bends down along the Hessian's smallest eigenvector, and every learning rate moves away along "
            f"it: its eigenvalue {lowest:.3g} outweighs the largest, {highest:.3g}."
        )
        good = None if below else good
    if not converged:
        text += f" (Not converged: the residual is {residual:.1e}.)"
    return Verdict("learning rate", good, text, rule, source)
