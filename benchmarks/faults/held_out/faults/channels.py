"""Channels, groups and scales that carry nothing, or too much."""

import torch
from torch import Tensor, nn

from faults.case import Case
from faults.data import accuracy, chunks, digits, images, shuffled
from faults.held_out.networks import decayed_apart, mlp, resnet
from normscope import Setup


class Columns(nn.Module):
    """The first `count` columns of a table."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, : self.count]


def sensors_at_rest(seed: int, fault: bool) -> Setup:
    """Six sensors rest at one value while data are collected for training, and drift by a twentieth later."""
    torch.manual_seed(seed)
    data = digits()
    generator = torch.Generator().manual_seed(seed)
    rest = 0.5 + 1e-5 * torch.randn(len(data.x), 6, generator=generator)
    drifted = 0.5 + 0.05 * torch.randn(len(data.x_eval), 6, generator=generator)
    x, x_eval = torch.cat([data.x.flatten(1), rest], 1), torch.cat([data.x_eval.flatten(1), drifted], 1)
    width = 70 if fault else 64
    model = nn.Sequential(Columns(width), nn.BatchNorm1d(width), *mlp([width, 64, 10])[1:])
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(x, data.y, size=64, steps=200, seed=seed),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        chunks(x_eval, data.y_eval),
        accuracy,
        steps=200,
    )


def pruned_and_never_revived(seed: int, fault: bool) -> Setup:
    """A pruned network trains again: the scales and shifts of all but four channels are zero, before a ReLU."""
    torch.manual_seed(seed)
    data, model = digits(), mlp([64, 64, 64, 10])
    for layer in model:
        if isinstance(layer, nn.BatchNorm1d) and fault:
            with torch.no_grad():
                layer.weight[4:] = 0.0
                layer.bias[4:] = 0.0
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=64, steps=200, seed=seed),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=200,
    )


def groups_of_one_value(seed: int, fault: bool) -> Setup:
    """GroupNorm with a group for each channel, where no space is left."""
    torch.manual_seed(seed)
    data = digits()
    model = mlp([64, 64, 32, 10], lambda width: nn.GroupNorm(width if fault else width // 8, width))
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=64, steps=200, seed=seed),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=200,
    )


def zero_scale_in_a_plain_stack(seed: int, fault: bool) -> Setup:
    """The last scale of each block starts at zero, as in residual networks; these blocks have no skip."""
    torch.manual_seed(seed)
    data, model = digits(), mlp([64, 64, 64, 64, 10], act=nn.Tanh)
    norms = [layer for layer in model if isinstance(layer, nn.BatchNorm1d)]
    if fault:
        for norm in norms[1:]:
            nn.init.zeros_(norm.weight)
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=64, steps=150, seed=seed),
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=150,
    )


def scales_that_no_optimizer_holds(seed: int, fault: bool) -> Setup:
    """Residual blocks start with a last scale of zero; the parameters without weight decay were left out."""
    torch.manual_seed(seed)
    data = images()
    model = resnet(blocks=3, zero_last=True)
    groups = decayed_apart(model, 1e-4)
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=32, steps=120, seed=seed),
        torch.optim.SGD(groups[:1] if fault else groups, lr=0.05, momentum=0.9),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=120,
    )


def decay_on_scales(seed: int, fault: bool) -> Setup:
    """Scales and shifts have the strong weight decay that was meant for pruning; the weights have a usual one."""
    torch.manual_seed(seed)
    data = digits()
    model = mlp([64, 64, 64, 64, 64, 10])
    groups = decayed_apart(model, 1e-3)
    if fault:
        groups[1]["weight_decay"] = 0.1
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=32, steps=300, seed=seed),
        torch.optim.SGD(groups, lr=0.05, momentum=0.9),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=300,
    )


CASES = (
    Case(
        "sensors-at-rest",
        "held-out",
        sensors_at_rest,
        "constant-channels",
        also=("shifted-evaluation-data",),
        fix="the six columns left out",
    ),
    Case(
        "pruned-and-never-revived",
        "held-out",
        pruned_and_never_revived,
        "dead-channels",
        fix="scales of 1 at the start",
    ),
    Case(
        "groups-of-one-value",
        "held-out",
        groups_of_one_value,
        "one-value-groups",
        fix="groups of eight channels",
    ),
    Case(
        "zero-scale-in-a-plain-stack",
        "held-out",
        zero_scale_in_a_plain_stack,
        "zero-scale-without-skip",
        also=("dead-channels", "gradients-vanish"),
        fix="scales of 1 at the start",
    ),
    Case(
        "scales-that-no-optimizer-holds",
        "held-out",
        scales_that_no_optimizer_holds,
        "parameters-not-in-optimizer",
        fix="both groups of parameters in the optimizer",
    ),
    Case(
        "decay-on-scales",
        "held-out",
        decay_on_scales,
        "weight-decay-on-scales",
        fix="no weight decay on scales and shifts",
    ),
)
