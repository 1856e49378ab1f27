r"""Second moments for an optimizer that has made no step: the squares of the gradients here, averaged over batches.

    v = mean_b (g_b + w theta)^2          w: weight decay that the optimizer adds to the gradient, else 0

Adam's running average, corrected for its start, is this mean over its last batches, and RMSprop's settles at it. An
Adagrad's sum grows with each step; its value after the first step is taken. Parameters stay where they are, and nothing
is written into the optimizer.
"""

import torch

from normscope.curvature.session import Session
from normscope.isolation.flat_vectors import split
from normscope.stability.optimizer_limits import SecondMoments
from normscope.stability.optimizer_rules import adds_decay, fresh

# More batches would change v by a few percent, and cost a gradient each.
MOST = 5


def gathered_moments(optimizer: torch.optim.Optimizer, session: Session) -> SecondMoments | None:
    """SecondMoments over at most `MOST` batches of the session; None where the optimizer has its own."""
    lent, chosen = session.lent, session.chosen
    if not fresh(optimizer, [lent.originals[i] for i in chosen]):
        return None
    leaves = [lent.leaves[i] for i in chosen]
    decays = [adds_decay(optimizer, lent.originals[i]) for i in chosen]
    used = session.batches[:MOST]
    means, squares = ([torch.zeros_like(leaf) for leaf in leaves] for _ in range(2))
    for batch in used:
        gradient = split(session.on([batch]).loss_and_gradient("batch").gradient, leaves)
        for mean, square, slope, leaf, decay in zip(means, squares, gradient, leaves, decays, strict=True):
            whole = slope + decay * leaf.detach()
            mean += whole / len(used)
            square += whole.square() / len(used)
    return SecondMoments(dict(zip(chosen, means, strict=True)), dict(zip(chosen, squares, strict=True)), len(used))
