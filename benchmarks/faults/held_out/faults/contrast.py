"""Contrastive learning in which the keys are normalized beside the very samples that their queries are."""

import torch

from faults.case import Case
from faults.data import chunks, digits, shuffled
from faults.held_out.tasks import Encoder, hidden, info_nce, neighbour_accuracy
from normscope import Setup


def keys_beside_their_queries(seed: int, fault: bool) -> Setup:
    """The same two samples share statistics among the queries and among the keys, which tells who belongs to whom.

    The noise of such small shares costs more here than the leak.
    """
    torch.manual_seed(seed)
    data, model, steps = digits(), Encoder(share=2 if fault else 64), 300
    first = torch.cat([hidden(data.x, view) for view in range(0, 8, 2)])
    second = torch.cat([hidden(data.x, view) for view in range(1, 9, 2)])
    return Setup(
        model,
        batches=shuffled(first, second, size=64, steps=steps, seed=seed),
        optimizer=torch.optim.Adam(model.parameters(), lr=2e-3),
        eval_batches=chunks(data.x_eval, data.y_eval, size=400),
        metric=neighbour_accuracy,
        forward=info_nce,
        steps=steps,
    )


CASES = (
    Case(
        "keys-beside-their-queries",
        "held-out",
        keys_beside_their_queries,
        "samples-see-each-other",
        "facebookresearch/moco#137",
        also=("small-batch-noise",),
        fix="statistics of the whole batch",
    ),
)
