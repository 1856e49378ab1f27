"""1-d signals, read by an LSTM in frames of four samples, Adam."""

import torch
from batches import chunks, shuffled
from task import Parts, Task, accuracy
from tasks._signals import CLASSES, signals
from torch import Tensor, nn


class Reader(nn.Module):
    def __init__(self, width: int = 48, frame: int = 4) -> None:
        super().__init__()
        self.frame = frame
        self.lstm = nn.LSTM(frame, width, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x.reshape(len(x), -1, self.frame))
        return self.head(states[:, -1])


def make(seed: int) -> Parts:
    data = signals(0.2)
    torch.manual_seed(seed)
    return Parts(
        model=Reader(),
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(*data.train, batch_size=32, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task("lstm", make, optimizer="adam", steps=1000, schedule="constant", batch_size=32, normalizer="none")
