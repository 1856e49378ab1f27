"""A ResNet trained on five classes of CIFAR-10 learns the other five from 1,000 images; SGD with momentum."""

import functools

import torch
from batches import chunks, shuffled
from task import Parts, Task, accuracy
from torch import Tensor, nn
from torch.nn import functional as F

from data import cifar10

PRETRAINED_STEPS = 80


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm; a strided convolution on the shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv_1, self.norm_1 = nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv_2, self.norm_2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm_1(self.conv_1(x)))
        return F.relu(self.shortcut(x) + self.norm_2(self.conv_2(h)))


class ResNet(nn.Module):
    """A stem, two residual blocks and a linear head on images of 16 x 16 pixels."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(ResidualBlock(16, 32), ResidualBlock(32, 64))
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def classes(part: tuple[Tensor, Tensor], first: int) -> tuple[Tensor, Tensor]:
    """The images of the five classes from `first` on, halved in size; the labels count from 0."""
    x, y = part
    chosen = (y >= first) & (y < first + 5)
    return F.avg_pool2d(x[chosen], 2), y[chosen] - first


@functools.cache
def pretrained(seed: int) -> dict[str, Tensor]:
    """The weights after a short training on the first five classes."""
    torch.manual_seed(seed)
    model = ResNet(5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = shuffled(*classes(cifar10().train, 0), batch_size=32, seed=seed)
    step = 0
    while step < PRETRAINED_STEPS:
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            step += 1
            if step == PRETRAINED_STEPS:
                break
    return model.state_dict()


def make(seed: int) -> Parts:
    data = cifar10()
    weights = pretrained(seed)
    x, y = classes(data.train, 5)
    torch.manual_seed(seed)
    model = ResNet(5)
    model.load_state_dict(weights)
    model.head.reset_parameters()
    return Parts(
        model=model,
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(x[:1000], y[:1000], batch_size=16, seed=seed),
        eval_batches=chunks(*classes(data.validation, 5)),
        test_batches=chunks(*classes(data.test, 5)),
        metric=accuracy,
    )


TASK = Task(
    "fine-tuning",
    make,
    optimizer="momentum",
    steps=600,
    schedule="cosine",
    batch_size=16,
    normalizer="BatchNorm",
    settings={"weight_decay": 5e-4},
)
