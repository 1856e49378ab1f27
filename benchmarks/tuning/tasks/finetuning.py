"""MNIST, a network with BatchNorm trained on the digits 0 to 4 and tuned on 600 images of 5 to 9 with a new head."""

import functools

import torch
from batches import chunks, shuffled
from networks import convolutions
from task import Parts, Task, accuracy
from torch import Tensor, nn

from data import mnist

PRETRAINING_STEPS, IMAGES = 200, 600


def _classes(part: tuple[Tensor, Tensor], first: int) -> tuple[Tensor, Tensor]:
    """The images of five classes, labelled from 0."""
    x, y = part
    kept = (y >= first) & (y < first + 5)
    return x[kept], y[kept] - first


@functools.cache
def _pretrained() -> dict[str, Tensor]:
    torch.manual_seed(100)
    model = convolutions([1, 16, 32, 32], 5, "batch")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = iter(shuffled(*_classes(mnist().train, 0), batch_size=32, seed=100))
    for step in range(PRETRAINING_STEPS):
        if step % 90 == 89:
            loader = iter(shuffled(*_classes(mnist().train, 0), batch_size=32, seed=100 + step))
        x, y = next(loader)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def make(seed: int) -> Parts:
    data = mnist()
    weights = _pretrained()
    torch.manual_seed(seed)
    model = convolutions([1, 16, 32, 32], 5, "batch")
    head = {name: value for name, value in model.state_dict().items() if name.startswith("11.")}
    model.load_state_dict(weights | head)
    x, y = _classes(data.train, 5)
    return Parts(
        model=model,
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(x[:IMAGES], y[:IMAGES], batch_size=32, seed=seed),
        eval_batches=chunks(*_classes(data.validation, 5)),
        test_batches=chunks(*_classes(data.test, 5)),
        metric=accuracy,
    )


TASK = Task("fine-tuning", make, optimizer="momentum", steps=500, schedule="cosine", batch_size=32, normalizer="batch")
