"""Language models over bytes: transformers, recurrent networks and causal convolutions."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.case import Case
from faults.development.networks import Recurrent, Transformer
from faults.development.setups import adamw, byte_setup, decayed
from normscope import Setup


def trained(
    seed: int,
    *,
    network: Callable[[], nn.Module],
    size: int = 16,
    falling: bool = False,
    **others: Any,
) -> Setup:
    """A byte language model, 200 steps of AdamW."""
    torch.manual_seed(seed)
    setup = byte_setup(network(), adamw(2e-3), size=size, steps=200, seed=seed, **others)
    return decayed(setup) if falling else setup


class PostLayer(nn.TransformerEncoderLayer):
    """A layer with its normalizers after the branches, as in the first transformers, with a causal mask."""

    def forward(self, src: Tensor, *args: Any, **others: Any) -> Tensor:  # type: ignore[override]
        mask = nn.Transformer.generate_square_subsequent_mask(src.shape[1])
        return super().forward(src, mask, is_causal=True)


def post_norm() -> nn.Module:
    layers = [PostLayer(32, 2, 128, dropout=0.0, batch_first=True) for _ in range(2)]
    return nn.Sequential(nn.Embedding(128, 32), *layers, nn.Linear(32, 128))


def warmed_up(seed: int) -> Setup:
    """A transformer whose rate rises over 40 steps."""
    setup = trained(seed, network=post_norm)
    assert setup.optimizer is not None
    rising = torch.optim.lr_scheduler.LambdaLR(setup.optimizer, lambda step: min(1.0, (step + 1) / 40))
    return replace(setup, scheduler=rising)


class CausalConvolutions(nn.Module):
    """Three causal convolutions over bytes, each with a BatchNorm over samples and positions."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, width)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, width, 3, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(3))
        self.head = nn.Linear(width, 128)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x).transpose(1, 2)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            hidden = F.relu(norm(convolution(F.pad(hidden, (2, 0)))))
        return self.head(hidden.transpose(1, 2))


def in_bfloat16() -> nn.Module:
    """A network whose parameters are bfloat16, and whose eps is far below the variance."""
    return Transformer(norm=partial(nn.RMSNorm, eps=1e-6)).bfloat16()


_TRAININGS: dict[str, Callable[[int], Setup]] = {
    "transformer-layernorm": partial(trained, network=Transformer),
    "transformer-qk-norm": partial(trained, network=partial(Transformer, qk_norm=nn.LayerNorm), size=8),
    "transformer-four-layers": partial(trained, network=partial(Transformer, 32, 4), size=8, clip=1.0, falling=True),
    "transformer-after-norm": warmed_up,
    "transformer-bfloat16": partial(trained, network=in_bfloat16, size=8),
    "transformer-mixed": partial(trained, network=Transformer, size=8, autocast=torch.bfloat16),
    "transformer-accumulated": partial(trained, network=Transformer, size=4, accumulate=4),
    "lstm-layernorm": partial(trained, network=Recurrent, size=8, clip=1.0),
    "lstm-plain": partial(trained, network=partial(Recurrent, norm=lambda width: nn.Identity()), size=8, clip=1.0),
    "causal-batchnorm": partial(trained, network=CausalConvolutions, falling=True),
}
CASES = tuple(Case(f"bytes-{name}", "development", make) for name, make in _TRAININGS.items())
