"""A byte language model on the help topics of Python: RMSNorm, QK-norm, SwiGLU, tied embeddings, AdamW."""

import torch
from batches import chunks, shuffled
from task import Parts, Task, accuracy
from torch import Tensor, nn
from torch.nn import functional as F

from data import text

LENGTH = 48
WIDTH = 48
HEADS = 3


class Attention(nn.Module):
    """Causal attention with RMSNorm on the queries and the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.q_norm = nn.RMSNorm(WIDTH // HEADS)
        self.k_norm = nn.RMSNorm(WIDTH // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class SwiGLU(nn.Module):
    """The gated feed-forward layer of Llama."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, hidden, bias=False)
        self.up = nn.Linear(WIDTH, hidden, bias=False)
        self.down = nn.Linear(hidden, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and SwiGLU, each behind RMSNorm in a residual branch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.norm_2, self.feed_forward = nn.RMSNorm(WIDTH), SwiGLU(2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.feed_forward(self.norm_2(x))


class LanguageModel(nn.Module):
    """Logits of the next byte; the embedding of the bytes is also the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(128, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 128, bias=False)
        for embedding in (self.bytes, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)
        self.head.weight = self.bytes.weight

    def forward(self, x: Tensor) -> Tensor:
        embedded = self.bytes(x) + self.positions.weight[: x.shape[1]]
        return self.head(self.norm(self.blocks(embedded)))


def next_byte_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy over all positions."""
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def make(seed: int) -> Parts:
    data = text(LENGTH)
    torch.manual_seed(seed)
    return Parts(
        model=LanguageModel(),
        loss_fn=next_byte_loss,
        batches=shuffled(*data.train, batch_size=16, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task(
    "language model",
    make,
    optimizer="adamw",
    steps=600,
    schedule="cosine",
    batch_size=16,
    normalizer="RMSNorm and QK-norm",
    settings={"betas": (0.9, 0.95), "weight_decay": 0.1},
)
