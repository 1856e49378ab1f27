"""Tables, sound and key points: pytorch_tabnet, rtdl_revisiting_models, speechbrain, kornia."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from entries import DEPTH, WIDTH, Entry

COLUMNS = 8


def _table(n: int = 32) -> tuple[Tensor, Tensor]:
    return torch.randn(n, COLUMNS), torch.randint(3, (n,))


def _tabnet(name: str, size: str) -> Entry:
    from pytorch_tabnet.tab_network import TabNet

    def loss(out: Any, y: Tensor) -> Tensor:
        """TabNet's own loss: cross-entropy and a penalty on the masks' entropy."""
        logits, sparsity = out
        return F.cross_entropy(logits, y) - 1e-3 * sparsity

    group = torch.eye(COLUMNS)
    return Entry(
        lambda: TabNet(COLUMNS, 3, n_d=8, n_a=8, virtual_batch_size=16, group_attention_matrix=group), _table, loss
    )


def _tables(name: str, size: str) -> Entry:
    import rtdl_revisiting_models as rtdl

    width, depth = WIDTH[size], DEPTH[size]
    if name == "MLP":
        return Entry(lambda: rtdl.MLP(d_in=COLUMNS, d_out=3, n_blocks=depth, d_block=width, dropout=0.1), _table)

    def batch() -> Any:
        columns = torch.randint(4, (32, 2))
        return torch.randn(32, COLUMNS), columns, torch.randint(3, (32,))

    options = {"n_blocks": depth, "d_block": width, "attention_n_heads": 4, "attention_dropout": 0.1, "d_out": 3}
    options |= {"ffn_d_hidden": None, "ffn_d_hidden_multiplier": 4 / 3, "ffn_dropout": 0.1, "residual_dropout": 0.0}
    return Entry(lambda: rtdl.FTTransformer(n_cont_features=COLUMNS, cat_cardinalities=[4, 4], **options), batch)


def _speech(name: str, size: str) -> Entry:
    from speechbrain.lobes.models.ContextNet import ContextNet

    width = WIDTH[size]
    # Every second block halves the time.
    options = {
        "num_blocks": 5,
        "num_layers": 2,
        "conv_channels": [width] * 5,
        "strides": [1, 2, 1, 2, 1],
        "kernel_size": 5,
    }
    return Entry(
        lambda: ContextNet((4, 32, 16), out_channels=width, inner_dim=8, **options),
        lambda: (torch.randn(4, 32, 16), torch.randn(4, 8, width)),
        F.mse_loss,
    )


def _key_points(name: str, size: str) -> Entry:
    from kornia.feature import XFeatModel

    def loss(out: Any, y: Tensor) -> Tensor:
        """Squared error of the descriptors, the key points and the reliability."""
        return sum(F.mse_loss(part, y.mean().expand_as(part)) for part in out)

    return Entry(XFeatModel, lambda: (torch.randn(4, 1, 64, 64), torch.randn(4)), loss)


ENTRIES = {
    "kornia": _key_points,
    "pytorch_tabnet": _tabnet,
    "rtdl_revisiting_models": _tables,
    "speechbrain": _speech,
}
