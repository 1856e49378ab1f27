"""LeNet-5 on MNIST without a normalizer: tanh, average pooling, plain SGD."""

import torch
from batches import chunks, shuffled
from task import Parts, Task, accuracy
from torch import nn

from data import mnist


def make(seed: int) -> Parts:
    data = mnist()
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, 10),
    )
    return Parts(
        model=model,
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(*data.train, batch_size=32, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task(
    "convolutional network", make, optimizer="sgd", steps=1200, schedule="cosine", batch_size=32, normalizer="none"
)
