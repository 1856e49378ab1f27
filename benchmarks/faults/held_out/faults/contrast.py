"""Contrastive learning in which the keys are normalized beside the very samples that their queries are."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.case import Case
from faults.data import chunks, digits, shuffled
from faults.held_out.networks import mlp
from normscope import Setup


class Encoder(nn.Module):
    """Unit vectors of digits. In training, BatchNorm runs on shares of `share` samples, as on as many devices."""

    def __init__(self, share: int) -> None:
        super().__init__()
        self.share = share
        self.net = mlp([64, 128, 128, 32])

    def forward(self, x: Tensor) -> Tensor:
        parts = x.split(self.share) if self.training else (x,)
        return F.normalize(torch.cat([self.net(part) for part in parts]), dim=-1)


def info_nce(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The contrastive loss of two views, keys without gradient."""
    queries = model(batch[0])
    with torch.no_grad():
        keys = model(batch[1])
    return F.cross_entropy(queries @ keys.t() / 0.1, torch.arange(len(queries)))


def hidden(x: Tensor, seed: int) -> Tensor:
    """A view: half of the pixels hidden, noise on all."""
    generator = torch.Generator().manual_seed(seed)
    seen = torch.rand(x.shape, generator=generator) > 0.5
    return x.where(seen, torch.tensor(0.0)) + 0.3 * torch.randn(x.shape, generator=generator)


def neighbour_accuracy(outputs: Tensor, y: Tensor) -> float:
    """The share of the first half's embeddings whose nearest one in the second half has their label."""
    half = len(outputs) // 2
    nearest = (outputs[:half] @ outputs[half:].t()).argmax(-1)
    return float((y[half:][nearest] == y[:half]).float().mean())


def keys_beside_their_queries(seed: int, fault: bool) -> Setup:
    """The same two samples share statistics among the queries and among the keys, which tells who belongs to whom."""
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
