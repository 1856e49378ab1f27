"""Transformers and mixers, with nothing wrong."""

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from faults.case import Case
from faults.data import chunks, digits, shuffled, text
from faults.held_out.networks import (
    ByteLM,
    Float32RMSNorm,
    Residual,
    ViT,
    decayed_apart,
    minus_token_loss,
    token_loss,
)
from faults.held_out.tasks import classification
from normscope import Setup


def language(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, size: int = 16, **more: object) -> Setup:
    """A byte language model on the help texts of Python."""
    data, steps = text(), 200
    return Setup(
        model,
        token_loss,
        shuffled(data.x, data.y, size=size, steps=steps, seed=seed),
        optimizer,
        chunks(data.x_eval, data.y_eval, size=64),
        minus_token_loss,
        steps=steps,
        **more,  # type: ignore[arg-type]
    )


def vit(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = ViT()
    return classification(model, digits(), AdamW(decayed_apart(model, 0.05), 3e-3), seed=seed, size=64, steps=200)


def vit_rms_norm_bfloat16(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = ViT(norm=lambda width: Float32RMSNorm(width, eps=1e-5))
    optimizer = AdamW(decayed_apart(model, 0.05), 3e-3)
    return classification(model, digits(), optimizer, seed=seed, size=32, steps=200, autocast=torch.bfloat16)


def vit_qk_norm(seed: int) -> Setup:
    """Normalized queries and keys allow a larger rate."""
    torch.manual_seed(seed)
    model = ViT(qk_norm=True)
    return classification(model, digits(), AdamW(decayed_apart(model, 0.05), 5e-3), seed=seed, size=64, steps=200)


class Patches(nn.Module):
    """Sixteen patches of a digit as tokens, with positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cut, self.positions = nn.Conv2d(1, width, 2, 2), nn.Parameter(0.02 * torch.randn(16, width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cut(x).flatten(2).transpose(1, 2) + self.positions
        return out


class MeanHead(nn.Module):
    """A linear head on the mean token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x.mean(1))
        return out


class Across(nn.Module):
    """A layer applied along the tokens."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.transpose(1, 2)).transpose(1, 2)
        return out


def mixer(seed: int) -> Setup:
    torch.manual_seed(seed)

    def mix(size: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    blocks: list[nn.Module] = []
    for _ in range(2):
        blocks.append(Residual(nn.Sequential(nn.LayerNorm(32), Across(mix(16)))))
        blocks.append(Residual(nn.Sequential(nn.LayerNorm(32), mix(32))))
    model = nn.Sequential(Patches(32), *blocks, nn.LayerNorm(32), MeanHead(32))
    return classification(model, digits(), AdamW(decayed_apart(model, 0.05), 2e-3), seed=seed, size=64, steps=200)


def bytes_layer_norm(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = ByteLM()
    return language(model, AdamW(decayed_apart(model, 0.1), 3e-3, betas=(0.9, 0.95)), seed)


def bytes_warm_up_and_clipping(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = ByteLM(depth=3)
    optimizer = AdamW(decayed_apart(model, 0.1), 4e-3, betas=(0.9, 0.95))
    return language(model, optimizer, seed, scheduler=LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 20)), clip=1.0)


def bytes_tied_bfloat16(seed: int) -> Setup:
    """The embedding is the head; RMSNorm with eps 1e-5 computes in float32."""
    torch.manual_seed(seed)
    model = ByteLM(norm=lambda width: Float32RMSNorm(width, eps=1e-5), tied=True)
    optimizer = AdamW(decayed_apart(model, 0.1), 3e-3, betas=(0.9, 0.95))
    return language(model, optimizer, seed, autocast=torch.bfloat16)


def bytes_qk_norm_batch_of_4(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = ByteLM(qk_norm=True)
    return language(model, AdamW(decayed_apart(model, 0.1), 3e-3), seed, size=4)


CASES = (
    Case("vit-layernorm", "held-out", vit),
    Case("vit-rmsnorm-bfloat16", "held-out", vit_rms_norm_bfloat16),
    Case("vit-qk-norm", "held-out", vit_qk_norm),
    Case("mixer-layernorm", "held-out", mixer),
    Case("bytes-layernorm", "held-out", bytes_layer_norm),
    Case("bytes-warm-up-and-clipping", "held-out", bytes_warm_up_and_clipping),
    Case("bytes-tied-rmsnorm-bfloat16", "held-out", bytes_tied_bfloat16),
    Case("bytes-qk-norm-batch-4", "held-out", bytes_qk_norm_batch_of_4),
)
