"""A GRU forecasts the next six hours of an electric load from the last day; Huber loss, Adam."""

import functools

import numpy as np
import torch
from batches import chunks, shuffled
from task import Parts, Task
from torch import Tensor, nn

from data import Split, split

HISTORY = 24
HORIZON = 6


@functools.cache
def load_data() -> Split:
    """Windows of a synthetic hourly load: daily and weekly cycles, temperature, noise that lasts hours.

    x is (N, 24, 4): load, temperature, and the hour as sine and cosine. y is (N, 6): the load that follows.
    """
    random = np.random.default_rng(17)
    hour = np.arange(9000)
    day, week = 2 * np.pi * hour / 24, (hour // 24) % 7
    noise = random.normal(size=(2, len(hour)))
    for t in range(1, len(hour)):
        noise[:, t] = np.array([0.98, 0.85]) * noise[:, t - 1] + np.array([0.2, 0.5]) * noise[:, t]
    temperature = 12 + 9 * np.sin(2 * np.pi * hour / 8760 - 1.8) + 4 * np.sin(day - 2.2) + 3 * noise[0]
    cycle = 6 * np.sin(day - 1.9) + 3 * np.sin(2 * day + 0.4) - 5 * (week >= 5)
    load = 50 + cycle + 0.6 * np.maximum(16 - temperature, 0) + 0.9 * np.maximum(temperature - 21, 0) + noise[1]
    load, temperature = (load - load.mean()) / load.std(), (temperature - temperature.mean()) / temperature.std()
    series = np.stack([load, temperature, np.sin(day), np.cos(day)], axis=1)
    # The gaps between the parts are longer than a window.
    starts = np.concatenate([np.arange(6700), np.arange(6740, 7764), np.arange(7804, 8828)])
    x = series[starts[:, None] + np.arange(HISTORY)]
    y = load[starts[:, None] + HISTORY + np.arange(HORIZON)]
    return split(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32), 6700, 1024, 1024)


class Forecaster(nn.Module):
    """A GRU over the day; its last state gives the six hours."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 32, batch_first=True)
        self.head = nn.Linear(32, HORIZON)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


def make(seed: int) -> Parts:
    data = load_data()
    torch.manual_seed(seed)
    return Parts(
        model=Forecaster(),
        loss_fn=nn.HuberLoss(delta=0.5),
        batches=shuffled(*data.train, batch_size=32, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
    )


TASK = Task(
    "recurrent network", make, optimizer="adam", steps=800, schedule="constant", batch_size=32, normalizer="none"
)
