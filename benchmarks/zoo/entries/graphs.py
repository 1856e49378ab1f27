"""torch_geometric: networks on graphs, whose forward takes features and edges."""

from typing import Any

import torch
from torch import Tensor, nn

from entries import DEPTH, WIDTH, Entry

NODES, EDGES, FEATURES = 24, 80, 8


def _edges(count: int = EDGES) -> Tensor:
    return torch.randint(NODES, (2, count))


def _attentive(width: int, depth: int) -> Entry:
    from torch_geometric.nn.models import AttentiveFP

    def batch() -> Any:
        graphs = torch.arange(NODES) // (NODES // 4)
        return torch.randn(NODES, FEATURES), _edges(), torch.randn(EDGES, 4), graphs, torch.randint(3, (4,))

    return Entry(lambda: AttentiveFP(FEATURES, width, 3, edge_dim=4, num_layers=depth, num_timesteps=2), batch)


def _pmlp(width: int, depth: int) -> Entry:
    from torch_geometric.nn.models import PMLP

    def batch() -> Any:
        return torch.randn(NODES, FEATURES), _edges(), torch.randint(3, (NODES,))

    # A multilayer perceptron in training, which takes edges in eval mode alone.
    def forward(model: nn.Module, batch: Any) -> Any:
        return model(batch[0], None if model.training else batch[1])

    return Entry(lambda: PMLP(FEATURES, width, 3, num_layers=depth), batch, forward=forward)


def _adversarial(width: int, depth: int) -> Entry:
    from torch_geometric.nn.models import ARGA, GCN, MLP

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, edges = batch
        z = model(x, edges)
        loss: Tensor = model.recon_loss(z, edges) + model.reg_loss(z)
        return loss

    return Entry(
        lambda: ARGA(GCN(FEATURES, width, depth, 16), MLP([16, width, 1])),
        lambda: (torch.randn(NODES, FEATURES), _edges()),
        loss_fn=None,
        forward=loss,
    )


def _signed(width: int, depth: int) -> Entry:
    from torch_geometric.nn.models import SignedGCN

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, positive, negative = batch
        loss: Tensor = model.loss(model(x, positive, negative), positive, negative)
        return loss

    return Entry(
        lambda: SignedGCN(FEATURES, width, depth),
        lambda: (torch.randn(NODES, FEATURES), _edges(), _edges()),
        loss_fn=None,
        forward=loss,
    )


_KINDS = {"AttentiveFP": _attentive, "PMLP": _pmlp, "ARGA": _adversarial, "SignedGCN": _signed}
ENTRIES = {"torch_geometric": lambda name, size: _KINDS[name](WIDTH[size], DEPTH[size])}
