"""A small MobileNet on MNIST in batches of eight: depthwise convolutions, BatchNorm, RMSprop with momentum."""

import torch
from batches import chunks, shuffled
from task import Parts, Task, accuracy
from torch import nn

from data import mnist


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution without bias, BatchNorm and ReLU6."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


def separable(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """A depthwise 3 x 3 convolution, then a pointwise one."""
    return nn.Sequential(convolution(inputs, inputs, 3, stride, groups=inputs), convolution(inputs, outputs, 1))


def make(seed: int) -> Parts:
    data = mnist()
    torch.manual_seed(seed)
    model = nn.Sequential(
        convolution(1, 16, 3, stride=2),
        separable(16, 32, stride=2),
        separable(32, 32, stride=1),
        separable(32, 64, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    return Parts(
        model=model,
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(*data.train, batch_size=8, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task(
    "convolutional network",
    make,
    optimizer="rmsprop",
    steps=1000,
    schedule="cosine",
    batch_size=8,
    normalizer="BatchNorm",
    settings={"alpha": 0.9, "momentum": 0.9, "weight_decay": 4e-5},
)
