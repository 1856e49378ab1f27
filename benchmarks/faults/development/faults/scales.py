"""Faults of eps, scales and groups that the configuration shows."""

import itertools
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from faults.case import Case
from faults.data import Split, digits
from faults.development.networks import Block, ResNet, cnn, groups, mlp, nothing
from faults.development.setups import adamw, classify, digit_setup, image_setup, sgd
from normscope import Setup


def eps_of_bfloat16(seed: int, fault: bool) -> Setup:
    """Weights of standard deviation 0.01 and the eps of bfloat16, kept from a training in that dtype."""
    torch.manual_seed(seed)
    eps = torch.finfo(torch.bfloat16).eps if fault else 1e-6
    model = mlp((64, *[32] * 4, 10), norm=partial(nn.RMSNorm, eps=eps))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
    return digit_setup(model, sgd(0.01), size=32, steps=150, seed=seed)


def faint_images(seed: int, fault: bool) -> Setup:
    """Images divided by 255 twice; the normalizer that standardizes them has the eps of another framework."""
    torch.manual_seed(seed)
    split = digits()
    faint = Split(split.x / 1000, split.y, split.x_eval / 1000, split.y_eval)
    standardize = nn.GroupNorm(1, 1, eps=1e-3 if fault else 1e-9, affine=False)
    model = nn.Sequential(standardize, *cnn(norm=nothing))
    return classify(model, faint, sgd(0.05), size=32, steps=200, seed=seed)


def decay_everywhere(seed: int, fault: bool) -> Setup:
    """Weight decay on all parameters of a deep network without skips."""
    torch.manual_seed(seed)
    model = mlp((64, *[48] * 5, 10), norm=nn.LayerNorm)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    parts = [{"params": matrices}, {"params": vectors, "weight_decay": 0.005 if fault else 0.0}]
    setup = digit_setup(model, sgd(0.1), size=64, steps=500, seed=seed)
    optimizer = torch.optim.SGD(parts, lr=0.1, momentum=0.9, weight_decay=0.005)
    return replace(setup, optimizer=optimizer)


def groups_after_pooling(seed: int, fault: bool) -> Setup:
    """A GroupNorm with one channel a group after global pooling."""
    torch.manual_seed(seed)
    body = list(cnn(norm=groups(4)).children())
    model = nn.Sequential(*body[:-1], nn.GroupNorm(32 if fault else 4, 32), nn.ReLU(), body[-1])
    return digit_setup(model, sgd(0.05), size=32, steps=150, seed=seed)


def one_pixel_instances(seed: int, fault: bool) -> Setup:
    """InstanceNorm down to one pixel."""
    torch.manual_seed(seed)
    channels = (1, 16, 24, 32, 32)
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(channels)):
        last = number == len(channels) - 2
        norm = nn.GroupNorm(4, outputs) if last and not fault else nn.GroupNorm(outputs, outputs)
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2 if number else 1, padding=1), norm, nn.ReLU()]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10))
    return digit_setup(model, adamw(3e-3), size=32, steps=150, seed=seed)


def zero_scales_plain(seed: int, fault: bool) -> Setup:
    """The zero-initialised last scales of a residual network, kept when the skips were removed."""
    torch.manual_seed(seed)
    model = cnn(depth=4)
    if fault:
        for norm in (m for m in list(model)[4:] if isinstance(m, nn.BatchNorm2d)):
            nn.init.zeros_(norm.weight)
    return image_setup(model, sgd(0.1), size=32, steps=150, seed=seed)


def untrained_scales(seed: int, fault: bool) -> Setup:
    """Zero-initialised last scales, and an optimizer that holds the matrices alone."""
    torch.manual_seed(seed)
    model = ResNet(width=8, blocks=4)
    for block in model.modules():
        if isinstance(block, Block):
            nn.init.zeros_(block.norm2.weight)
    setup = image_setup(model, sgd(0.05), size=32, steps=150, seed=seed)
    held = [p for p in model.parameters() if p.ndim > 1 or not fault]
    return replace(setup, optimizer=torch.optim.SGD(held, lr=0.05, momentum=0.9))


CASES = (
    Case(
        "rmsnorm-eps-of-bfloat16",
        "development",
        eps_of_bfloat16,
        "eps-against-variance",
        "https://github.com/pytorch/pytorch/issues/189581",
        fix="eps 1e-6",
    ),
    Case("faint-images", "development", faint_images, "eps-against-variance", fix="eps 1e-8"),
    Case(
        "decay-on-all-parameters",
        "development",
        decay_everywhere,
        "weight-decay-on-scales",
        "https://github.com/ServiceNow/Fast-LLM/pull/545",
        fix="no decay on scales, shifts and biases",
    ),
    Case("groups-of-one-after-pooling", "development", groups_after_pooling, "one-value-groups", fix="four groups"),
    Case(
        "instances-of-one-pixel", "development", one_pixel_instances, "one-value-groups", fix="four groups at the end"
    ),
    Case(
        "zero-scales-without-skips",
        "development",
        zero_scales_plain,
        "zero-scale-without-skip",
        also=("dead-channels",),
        fix="scales of one",
    ),
    Case(
        "scales-outside-the-optimizer",
        "development",
        untrained_scales,
        "parameters-not-in-optimizer",
        fix="all parameters in the optimizer",
    ),
)
