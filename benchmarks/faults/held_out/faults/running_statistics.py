"""Running statistics that are not those of the activations: shared layers, lost buffers, momentum, evaluation mode."""

import torch
from torch import Tensor, nn

from faults.case import Case
from faults.data import accuracy, chunks, digits, images, shuffled
from faults.held_out.networks import cnn, mlp
from faults.training import train
from normscope import Setup


class Shared(nn.Module):
    """Three linear layers, each followed by a normalizer: the same one, or each its own."""

    def __init__(self, one: bool) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(3))
        for layer, gain in zip(self.linear, (1.0, 4.0, 0.25), strict=True):
            nn.init.normal_(layer.weight, std=gain / 8)  # type: ignore[arg-type]
        own = [nn.BatchNorm1d(64) for _ in range(3)]
        self.norms = nn.ModuleList([own[0]] * 3 if one else own)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = x.flatten(1)
        for linear, norm in zip(self.linear, self.norms, strict=True):
            h = norm(linear(h)).relu()
        out: Tensor = self.head(h)
        return out


def one_norm_for_three_places(seed: int, fault: bool) -> Setup:
    torch.manual_seed(seed)
    data, model = digits(), Shared(one=fault)
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=64, steps=200, seed=seed),
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=200,
    )


def checkpoint_without_buffers(seed: int, fault: bool) -> Setup:
    """Training goes on from saved parameters; the saved file has no running statistics."""
    torch.manual_seed(seed)
    data = images()
    model = cnn()
    before = shuffled(data.x, data.y, size=32, steps=100, seed=seed + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train(Setup(model, nn.CrossEntropyLoss(), before, optimizer, steps=100))
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 0.01
            if fault:
                layer.reset_running_stats()
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=32, steps=40, seed=seed),
        torch.optim.SGD(model.parameters(), lr=0.01),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=40,
    )


def momentum_of_tensorflow(seed: int, fault: bool) -> Setup:
    """The momentum of a Keras model, typed into a port of it: six layers, batches of 12."""
    torch.manual_seed(seed)
    data, momentum = digits(), 0.99 if fault else 0.01
    model = mlp([64, 64, 64, 64, 64, 64, 64, 10], lambda width: nn.BatchNorm1d(width, momentum=momentum, eps=1e-3))
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=12, steps=500, seed=seed),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=500,
    )


def momentum_that_never_settles(seed: int, fault: bool) -> Setup:
    torch.manual_seed(seed)
    data = images()
    model = cnn(lambda width: nn.BatchNorm2d(width, momentum=0.0005 if fault else 0.1))
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=32, steps=120, seed=seed),
        torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=120,
    )


def one_image_at_a_time(seed: int, fault: bool) -> Setup:
    """Statistics of the batch at evaluation, where images come one by one."""
    torch.manual_seed(seed)
    data = images()
    model = cnn(lambda width: nn.BatchNorm2d(width, track_running_stats=not fault))
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=32, steps=120, seed=seed),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        chunks(data.x_eval, data.y_eval, size=1),
        accuracy,
        steps=120,
    )


def evaluation_in_other_units(seed: int, fault: bool) -> Setup:
    """Training images are standardized; evaluation images keep their range of 0 to 16, divided by 16."""
    torch.manual_seed(seed)
    data, model = digits(), mlp([64, 64, 64, 10])
    low, high = data.x.min(), data.x.max()
    x_eval = (data.x_eval - low) / (high - low) if fault else data.x_eval
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=64, steps=200, seed=seed),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        chunks(x_eval, data.y_eval),
        accuracy,
        steps=200,
    )


CASES = (
    Case(
        "one-norm-for-three-places",
        "held-out",
        one_norm_for_three_places,
        "stale-running-statistics",
        "junyanz/pytorch-CycleGAN-and-pix2pix#1005",
        fix="a BatchNorm for each place",
    ),
    Case(
        "checkpoint-without-buffers",
        "held-out",
        checkpoint_without_buffers,
        "stale-running-statistics",
        "hiwonjoon/tf-frrn#2",
        also=("momentum-too-small",),
        fix="running statistics loaded with the parameters",
    ),
    Case(
        "momentum-of-tensorflow",
        "held-out",
        momentum_of_tensorflow,
        "momentum-inverted",
        "r9y9/tacotron_pytorch#19",
        fix="momentum 0.01 in the place of 0.99",
    ),
    Case(
        "momentum-that-never-settles",
        "held-out",
        momentum_that_never_settles,
        "momentum-too-small",
        also=("stale-running-statistics",),
        fix="momentum 0.1",
    ),
    Case(
        "one-image-at-a-time",
        "held-out",
        one_image_at_a_time,
        "train-mode-at-evaluation",
        "pytorch/pytorch#4741",
        fix="track_running_stats=True",
    ),
    Case(
        "evaluation-in-other-units",
        "held-out",
        evaluation_in_other_units,
        "shifted-evaluation-data",
        fix="evaluation images standardized as the training images are",
    ),
)
