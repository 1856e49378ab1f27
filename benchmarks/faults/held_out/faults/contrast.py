"""Contrastive learning in which the keys are normalized beside the very samples that their queries are."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.case import Case
from faults.data import chunks, digits, shuffled
from faults.held_out.networks import mlp
from normscope import Setup


class Encoder(nn.Module):
    """Unit vectors of digits. BatchNorm runs on shares of four samples, as on as many devices."""

    def __init__(self, shuffle: bool) -> None:
        super().__init__()
        self.shuffle = shuffle
        self.net = mlp([64, 128, 128, 32])

    def forward(self, x: Tensor) -> Tensor:
        parts = x.split(4) if self.training else (x,)
        return F.normalize(torch.cat([self.net(part) for part in parts]), dim=-1)

    def keys(self, x: Tensor) -> Tensor:
        """The keys. With `shuffle`, the shares of the keys hold other samples together than those of the queries."""
        if not self.shuffle:
            return self(x)
        order = torch.arange(len(x)).view(4, -1).t().flatten()
        return self(x[order])[order.argsort()]


def info_nce(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The contrastive loss of two views, keys without gradient."""
    queries = model(batch[0])
    with torch.no_grad():
        keys = model.keys(batch[1])  # type: ignore[operator]
    return F.cross_entropy(queries @ keys.t() / 0.1, torch.arange(len(queries)))


def hidden(x: Tensor, seed: int) -> Tensor:
    """A view: noise on all pixels, a third of them hidden, and everything moved by a pixel to one side."""
    generator = torch.Generator().manual_seed(seed)
    seen = torch.rand(x.shape, generator=generator) > 0.33
    moved = x.roll((seed % 3 - 1, seed // 3 % 3 - 1), (2, 3))
    return moved.where(seen, torch.tensor(0.0)) + 0.3 * torch.randn(x.shape, generator=generator)


def neighbour_accuracy(outputs: Tensor, y: Tensor) -> float:
    """The share of the first half's embeddings whose nearest one in the second half has their label."""
    half = len(outputs) // 2
    nearest = (outputs[:half] @ outputs[half:].t()).argmax(-1)
    return float((y[half:][nearest] == y[:half]).float().mean())


def keys_beside_their_queries(seed: int, fault: bool) -> Setup:
    torch.manual_seed(seed)
    data, model, steps = digits(), Encoder(shuffle=not fault), 250
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
        fix="keys shuffled before they are shared out",
    ),
)
