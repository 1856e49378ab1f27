"""A small ViT on CIFAR-10: LayerNorm before each branch, a class token, label smoothing, AdamW."""

import torch
from batches import chunks, shuffled
from task import Parts, Task, accuracy
from torch import Tensor, nn

from data import cifar10

WIDTH = 48
PATCH = 8


class ViT(nn.Module):
    """Patches of 8 x 8 pixels, a class token, two encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (32 // PATCH) ** 2 + 1, WIDTH))
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    WIDTH, 4, 2 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(2)
            )
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.positions
        return self.head(self.norm(self.layers(tokens)[:, 0]))


def make(seed: int) -> Parts:
    data = cifar10()
    torch.manual_seed(seed)
    return Parts(
        model=ViT(),
        loss_fn=nn.CrossEntropyLoss(label_smoothing=0.1),
        batches=shuffled(*data.train, batch_size=32, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task(
    "vision transformer",
    make,
    optimizer="adamw",
    steps=700,
    schedule="cosine",
    batch_size=32,
    normalizer="LayerNorm",
    settings={"weight_decay": 0.05},
)
