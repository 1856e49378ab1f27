"""House prices from a table: categories as embeddings, LayerNorm, batches of 512, SGD with Nesterov momentum."""

import functools
import itertools

import numpy as np
import torch
from batches import chunks, shuffled
from task import Parts, Task
from torch import Tensor, nn

from data import Split, split

DISTRICTS = 24
TYPES = 5
NUMERIC = 10


@functools.cache
def table() -> Split:
    """Synthetic sales: x holds ten numeric columns, then district and type as numbers; y is the logarithmic price.

    Three numeric columns say nothing about the price, and one sale in fifty is an outlier.
    """
    random = np.random.default_rng(29)
    n = 12_000
    district, kind = random.integers(DISTRICTS, size=n), random.choice(TYPES, size=n, p=[0.45, 0.25, 0.15, 0.1, 0.05])
    level, slope = random.normal(size=DISTRICTS), 1 + 0.3 * random.normal(size=DISTRICTS)
    area = np.exp(4.6 + 0.4 * random.normal(size=n) + 0.2 * kind)
    rooms = np.maximum(1, np.round(area / 28 + random.normal(size=n)))
    age = random.gamma(2.0, 18.0, size=n)
    distance = random.gamma(2.0, 3.0, size=n) + np.maximum(level, 0)[district]
    garden = random.exponential(150, size=n) * (kind >= 2)
    condition = random.normal(size=n) - age / 60
    energy = np.clip(age / 20 + random.normal(size=n), 0, None)
    price = slope[district] * np.log(area) + 0.4 * level[district] - 0.25 * np.log1p(distance) * (kind == 0)
    price += 0.15 * np.tanh(condition) - 0.2 * np.sin(age / 25) + 0.001 * garden / (1 + distance) - 0.03 * energy
    price += 0.1 * random.normal(size=n) + (random.random(n) < 0.02) * random.normal(size=n)
    idle = random.normal(size=(n, 3)) ** 3
    numeric = np.column_stack([area, rooms, age, distance, garden, condition, energy, idle])
    numeric = (numeric - numeric.mean(0)) / numeric.std(0)
    x = torch.tensor(np.column_stack([numeric, district, kind]), dtype=torch.float32)
    y = torch.tensor((price - price.mean()) / price.std(), dtype=torch.float32)[:, None]
    return split(x, y, 9600, 1152, 1152)


class Tabular(nn.Module):
    """Embedded categories beside the numeric columns, then hidden layers with LayerNorm and ReLU."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.district = nn.Embedding(DISTRICTS, 8)
        self.kind = nn.Embedding(TYPES, 3)
        sizes = [NUMERIC + 11, width, width, width]
        layers = [
            nn.Sequential(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.ReLU())
            for inputs, outputs in itertools.pairwise(sizes)
        ]
        self.hidden = nn.Sequential(*layers)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        district, kind = x[:, NUMERIC].long(), x[:, NUMERIC + 1].long()
        features = torch.cat([x[:, :NUMERIC], self.district(district), self.kind(kind)], dim=1)
        return self.head(self.hidden(features))


def make(seed: int) -> Parts:
    data = table()
    torch.manual_seed(seed)
    return Parts(
        model=Tabular(),
        loss_fn=nn.MSELoss(),
        batches=shuffled(*data.train, batch_size=512, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
    )


TASK = Task(
    "tabular regression",
    make,
    optimizer="nesterov",
    steps=800,
    schedule="constant",
    batch_size=512,
    normalizer="LayerNorm",
    settings={"weight_decay": 1e-4},
)
