"""Residual networks, averaged weights and fine-tuning, with nothing wrong."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from faults.case import Case
from faults.data import Split, chunks, digits, images
from faults.held_out.networks import Residual, basic_block, decayed_apart, group_norm, mlp, resnet
from faults.held_out.tasks import Average, Frozen, classification, pretrained
from normscope import Setup


def batch_norm(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = resnet()
    return classification(model, images(), SGD(model.parameters(), 0.05, 0.9), seed=seed, size=32, steps=120)


def zero_init_with_skips(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = resnet(zero_last=True)
    optimizer = SGD(decayed_apart(model, 1e-4), 0.05, 0.9)
    schedule = CosineAnnealingLR(optimizer, 120)
    return classification(model, images(), optimizer, seed=seed, size=32, steps=120, scheduler=schedule)


def group_norm_batch_of_2(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = resnet(group_norm, width=8)
    return classification(model, digits(), AdamW(model.parameters(), 1e-3), seed=seed, size=2, steps=600)


def bfloat16(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = resnet(width=8)
    optimizer = SGD(model.parameters(), 0.05, 0.9)
    more = {"autocast": torch.bfloat16, "scheduler": CosineAnnealingLR(optimizer, 200)}
    return classification(model, digits(), optimizer, seed=seed, size=32, steps=200, **more)


def preactivation(seed: int) -> Setup:
    """BatchNorm and ReLU before each convolution, and once more at the end."""
    torch.manual_seed(seed)

    def block(width: int) -> Residual:
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1, bias=False)]
        return Residual(nn.Sequential(*layers))

    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, 1, 1),
        block(12),
        block(12),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(48, 10),
    )
    return classification(model, digits(), SGD(model.parameters(), 0.05, 0.9), seed=seed, size=64, steps=150)


def deep_residual_perceptron(seed: int) -> Setup:
    """Twenty residual branches, each with a BatchNorm of its own."""
    torch.manual_seed(seed)
    branches = [
        Residual(nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))) for _ in range(20)
    ]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *branches, nn.BatchNorm1d(32), nn.Linear(32, 10))
    return classification(model, digits(), SGD(model.parameters(), 0.02, 0.9), seed=seed, size=64, steps=200)


def ema_with_buffers(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = resnet(width=8)
    average = Average(model, 0.95, copy_buffers=True)
    optimizer = SGD(model.parameters(), 0.05, 0.9)
    return classification(model, digits(), optimizer, seed=seed, size=32, steps=200, averaged_model=average)


def ema_of_torch(seed: int) -> Setup:
    """torch's average, buffers averaged with the parameters."""
    torch.manual_seed(seed)
    model = mlp([64, 64, 64, 10])
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True)
    optimizer = Adam(model.parameters(), 2e-3)
    return classification(model, digits(), optimizer, seed=seed, size=64, steps=250, averaged_model=average)


class PreciseAverage(AveragedModel):
    """An equal average of weights whose BatchNorm statistics are computed again every ten updates."""

    def __init__(self, model: nn.Module, batches: Iterable[Tensor]) -> None:
        super().__init__(model)
        self.batches = list(batches)

    def update_parameters(self, model: nn.Module) -> None:
        super().update_parameters(model)
        if int(self.n_averaged) % 10 == 0:
            torch.optim.swa_utils.update_bn(self.batches, self)


def precise_batch_norm_after_swa(seed: int) -> Setup:
    torch.manual_seed(seed)
    data, model = images(), resnet(width=8)
    average = PreciseAverage(model, data.x[:512].split(128))
    optimizer = SGD(model.parameters(), 0.1, 0.9)
    return classification(model, data, optimizer, seed=seed, size=64, steps=100, averaged_model=average)


def _negatives() -> Split:
    data = digits()
    return Split(-data.x, data.y, -data.x_eval, data.y_eval)


def frozen_batch_norm_with_frozen_scales(seed: int) -> Setup:
    """Fine-tuning on digits that are a little darker: statistics, scales and shifts all stay."""
    torch.manual_seed(seed)
    data = digits()
    darker = Split(0.8 * data.x - 0.1, data.y, 0.8 * data.x_eval - 0.1, data.y_eval)
    model = Frozen(*pretrained(seed, [64, 64, 64, 10], torch.arange(10))).train()
    for layer in model:
        if isinstance(layer, nn.BatchNorm1d):
            layer.requires_grad_(False)
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], 0.005, 0.9)
    return classification(model, darker, optimizer, seed=seed, size=32, steps=150)


class Probe(nn.Module):
    """A frozen backbone in eval mode with a new linear head."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.backbone, self.head = Frozen(*layers[:-1]).requires_grad_(False), nn.Linear(64, 10)
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.backbone(x))
        return out


def linear_probe(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = Probe(pretrained(seed, [64, 64, 64, 10], torch.arange(10)))
    return classification(model, digits(), SGD(model.head.parameters(), 0.1, 0.9), seed=seed, size=32, steps=150)


def fine_tuned_whole(seed: int) -> Setup:
    """All of a network goes on training on negatives, BatchNorm in train mode."""
    torch.manual_seed(seed)
    model = pretrained(seed, [64, 64, 64, 10], torch.arange(10))
    return classification(model, _negatives(), SGD(model.parameters(), 0.02, 0.9), seed=seed, size=32, steps=200)


def one_image_at_a_time(seed: int) -> Setup:
    """Evaluation of single images by running statistics."""
    torch.manual_seed(seed)
    data = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 1, 1),
        basic_block(8, nn.BatchNorm2d),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    few = Split(data.x, data.y, data.x_eval[:100], data.y_eval[:100])
    setup = classification(model, few, SGD(model.parameters(), 0.05, 0.9), seed=seed, size=32, steps=200)
    return replace(setup, eval_batches=chunks(few.x_eval, few.y_eval, size=1))


CASES = (
    Case("resnet-batchnorm", "held-out", batch_norm),
    Case("resnet-zero-init-with-skips", "held-out", zero_init_with_skips),
    Case("resnet-groupnorm-batch-2", "held-out", group_norm_batch_of_2),
    Case("resnet-bfloat16", "held-out", bfloat16),
    Case("resnet-preactivation", "held-out", preactivation),
    Case("residual-perceptron-of-20", "held-out", deep_residual_perceptron),
    Case("resnet-ema-with-buffers", "held-out", ema_with_buffers),
    Case("mlp-ema-of-torch", "held-out", ema_of_torch),
    Case("resnet-precise-batchnorm-after-swa", "held-out", precise_batch_norm_after_swa),
    Case("finetuning-all-frozen", "held-out", frozen_batch_norm_with_frozen_scales),
    Case("finetuning-linear-probe", "held-out", linear_probe),
    Case("finetuning-whole", "held-out", fine_tuned_whole),
    Case("resnet-one-image-at-a-time", "held-out", one_image_at_a_time),
)
