"""Setups that look wrong and are right."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from faults.case import Case
from faults.data import Drawn, chunks, digits
from faults.development.faults.averaging import ParameterAverage
from faults.development.faults.depth import Branch
from faults.development.faults.frozen import trained_body
from faults.development.networks import Block, ResNet, cnn, groups, mlp
from faults.development.setups import adamw, decayed, digit_setup, image_setup, sgd
from normscope import Setup


def groupnorm_of_four(seed: int) -> Setup:
    torch.manual_seed(seed)
    return decayed(digit_setup(ResNet(norm=groups(4), stride=1), adamw(1e-3), size=4, steps=400, seed=seed))


def layernorm_of_two(seed: int) -> Setup:
    torch.manual_seed(seed)
    return digit_setup(mlp((64, 64, 64, 10), nn.LayerNorm), adamw(1e-3), size=2, steps=500, seed=seed)


def groupnorm_and_one(seed: int) -> Setup:
    """Epochs end with a batch of one; GroupNorm does not mind."""
    torch.manual_seed(seed)
    split, steps = digits(), 300
    x, y = split.x[:1025], split.y[:1025]
    batches = Drawn((x, y), steps, seed, lambda generator: torch.randperm(1025, generator=generator).split(32))
    model = cnn(width=16, norm=groups(4))
    return decayed(digit_setup(model, adamw(3e-3), size=32, steps=steps, seed=seed, batches=batches))


def frozen_body(seed: int) -> Setup:
    """The body is frozen: parameters, scales and running statistics; a new head trains."""
    torch.manual_seed(seed)
    model = copy.deepcopy(trained_body()).requires_grad_(False).eval()
    model[-1] = nn.Linear(32, 10)
    return digit_setup(model, sgd(0.1), size=32, steps=150, seed=seed)


def frozen_batchnorm(seed: int) -> Setup:
    """All layers are fine-tuned but BatchNorm, which is in eval mode with frozen scales and shifts."""
    torch.manual_seed(seed)
    model = copy.deepcopy(trained_body()).train()
    model[-1] = nn.Linear(32, 10)
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.requires_grad_(False).eval()
    return digit_setup(model, sgd(0.01), size=16, steps=150, seed=seed)


def fine_tuned(seed: int) -> Setup:
    """All of a trained network is fine-tuned at a small rate, BatchNorm in train mode."""
    torch.manual_seed(seed)
    return digit_setup(copy.deepcopy(trained_body()).train(), sgd(0.005), size=32, steps=100, seed=seed)


def zero_scales(seed: int) -> Setup:
    """The last scale of each residual branch starts at zero."""
    torch.manual_seed(seed)
    model = ResNet(stride=1)
    for block in (m for m in model.modules() if isinstance(m, Block)):
        nn.init.zeros_(block.norm2.weight)
    return decayed(digit_setup(model, sgd(0.05), size=32, steps=200, seed=seed))


class Scaled(nn.Module):
    """A branch times a number that starts at zero."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch, self.scale = branch, nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.branch(x)


def no_normalizer_and_zero(seed: int) -> Setup:
    """Residual branches without a normalizer, each times a number that starts at zero."""
    torch.manual_seed(seed)
    branches = [Scaled(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))) for _ in range(6)]
    model = nn.Sequential(nn.Flatten(), *[Branch(branch) for branch in branches], nn.Linear(64, 10))
    return digit_setup(model, adamw(3e-3), size=32, steps=200, seed=seed)


class RecomputedAtTheEnd(AveragedModel):
    """A mean of weights whose running statistics are computed again every so many steps."""

    def __init__(self, model: nn.Module, batches: list[tuple[Tensor, ...]], every: int) -> None:
        super().__init__(model)
        self.batches, self.every = batches, every

    def update_parameters(self, model: nn.Module) -> None:
        super().update_parameters(model)
        if int(self.n_averaged) % self.every == 0:
            update_bn(self.batches, self)


def precise_average(seed: int) -> Setup:
    """Stochastic weight averaging with running statistics computed for the averaged weights."""
    torch.manual_seed(seed)
    setup = digit_setup(cnn(), sgd(0.05), size=32, steps=200, seed=seed)
    batches = list(itertools.islice(setup.batches or (), 30))
    return replace(setup, averaged_model=RecomputedAtTheEnd(setup.model, batches, every=20))


def average_with_buffers(seed: int) -> Setup:
    """A moving average of parameters and buffers alike."""
    torch.manual_seed(seed)
    model = cnn()
    average = ParameterAverage(model, 0.9, buffers=True)
    return digit_setup(model, sgd(0.03), size=32, steps=200, seed=seed, averaged_model=average)


def average_of_layernorm(seed: int) -> Setup:
    """A moving average of a network that has no buffers."""
    torch.manual_seed(seed)
    model = mlp((64, 64, 64, 10), nn.LayerNorm)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    return digit_setup(model, adamw(3e-3), size=32, steps=200, seed=seed, averaged_model=average)


def accumulated_groupnorm(seed: int) -> Setup:
    """Micro-batches of two with a normalizer for each sample."""
    torch.manual_seed(seed)
    return digit_setup(cnn(norm=groups(4)), sgd(0.05), size=2, steps=120, seed=seed, accumulate=8)


def accumulated_large(seed: int) -> Setup:
    """Micro-batches of 64 are large enough for BatchNorm."""
    torch.manual_seed(seed)
    return digit_setup(cnn(), sgd(0.05), size=64, steps=120, seed=seed, accumulate=2)


def momentum_of_large_batches(seed: int) -> Setup:
    """Momentum 0.5 where a batch has 256 images, so that one batch has good statistics."""
    torch.manual_seed(seed)
    model = cnn(norm=partial(nn.BatchNorm2d, momentum=0.5))
    return decayed(digit_setup(model, sgd(0.05), size=256, steps=100, seed=seed))


def without_scales(seed: int) -> Setup:
    """BatchNorm without scales and shifts."""
    torch.manual_seed(seed)
    return digit_setup(cnn(norm=partial(nn.BatchNorm2d, affine=False)), sgd(0.03), size=32, steps=200, seed=seed)


def double(seed: int) -> Setup:
    """A network in float64."""
    torch.manual_seed(seed)
    split = digits()
    setup = digit_setup(cnn().double(), sgd(0.05), size=32, steps=150, seed=seed)
    batches = Drawn((split.x.double(), split.y), 150, seed, lambda g: torch.randperm(1400, generator=g).split(32)[:43])
    return replace(setup, batches=batches, eval_batches=chunks(split.x_eval.double(), split.y_eval))


def mixed_precision(seed: int) -> Setup:
    torch.manual_seed(seed)
    return digit_setup(cnn(), sgd(0.05), size=32, steps=150, seed=seed, autocast=torch.bfloat16)


def small_decay_of_matrices(seed: int) -> Setup:
    """Strong weight decay on matrices alone."""
    torch.manual_seed(seed)
    model = cnn(depth=4)
    parts = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 1e-2},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    setup = image_setup(model, sgd(0.03), size=32, steps=150, seed=seed)
    return decayed(replace(setup, optimizer=torch.optim.SGD(parts, 0.03, momentum=0.9)))


_TRAININGS: dict[str, Callable[[int], Setup]] = {
    "groupnorm-and-four-images": groupnorm_of_four,
    "layernorm-and-two-images": layernorm_of_two,
    "groupnorm-and-a-last-image": groupnorm_and_one,
    "body-frozen-whole": frozen_body,
    "batchnorm-frozen-whole": frozen_batchnorm,
    "all-fine-tuned": fine_tuned,
    "zero-scales-in-branches": zero_scales,
    "zero-branches-unnormalized": no_normalizer_and_zero,
    "mean-of-weights-recomputed": precise_average,
    "average-with-its-buffers": average_with_buffers,
    "average-of-layernorm": average_of_layernorm,
    "accumulated-groupnorm": accumulated_groupnorm,
    "accumulated-batches-of-64": accumulated_large,
    "momentum-half-of-large-batches": momentum_of_large_batches,
    "batchnorm-without-scales": without_scales,
    "float64": double,
    "mixed-precision-batchnorm": mixed_precision,
    "decay-of-matrices": small_decay_of_matrices,
}
CASES = tuple(Case(f"unusual-{name}", "development", make) for name, make in _TRAININGS.items())
