"""Convolutional networks, with nothing wrong."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from faults.case import Case
from faults.data import chunks, digits, images, minus_squared_error, shuffled
from faults.held_out.networks import Norm, cnn, conv_block, decayed_apart, group_norm
from faults.held_out.tasks import classification
from normscope import Setup


def batch_norm(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = cnn()
    optimizer = SGD(model.parameters(), 0.05, 0.9)
    schedule = CosineAnnealingLR(optimizer, 150)
    return classification(model, images(), optimizer, seed=seed, size=32, steps=150, scheduler=schedule)


def batch_of_128(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = cnn()
    optimizer = SGD(decayed_apart(model, 5e-4), 0.1, 0.9, nesterov=True)
    schedule = CosineAnnealingLR(optimizer, 100)
    return classification(model, images(), optimizer, seed=seed, size=128, steps=100, scheduler=schedule)


def decay_on_everything(seed: int) -> Setup:
    """The usual small weight decay for all parameters: rate x decay x steps is far below 1."""
    torch.manual_seed(seed)
    model = cnn()
    optimizer = SGD(model.parameters(), 0.05, 0.9, weight_decay=5e-4)
    schedule = CosineAnnealingLR(optimizer, 150)
    return classification(model, images(), optimizer, seed=seed, size=64, steps=150, scheduler=schedule)


def group_norm_batch_of_4(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = cnn(group_norm)
    return classification(model, digits(), AdamW(model.parameters(), 3e-3), seed=seed, size=4, steps=600)


def accumulated_group_norm(seed: int) -> Setup:
    """Eight micro-batches of four; GroupNorm does not notice."""
    torch.manual_seed(seed)
    model = cnn(group_norm)
    optimizer = AdamW(model.parameters(), 5e-3)
    return classification(model, digits(), optimizer, seed=seed, size=4, steps=120, accumulate=8)


def accumulated_large_micro_batches(seed: int) -> Setup:
    """Two micro-batches of 64: BatchNorm sees enough samples in each."""
    torch.manual_seed(seed)
    model = cnn()
    optimizer = SGD(model.parameters(), 0.1, 0.9)
    schedule = CosineAnnealingLR(optimizer, 80)
    more = {"accumulate": 2, "scheduler": schedule}
    return classification(model, images(), optimizer, seed=seed, size=64, steps=80, **more)


def one_cycle(seed: int) -> Setup:
    """A rate that peaks in the middle, clipped gradients."""
    torch.manual_seed(seed)
    model = cnn()
    optimizer = AdamW(decayed_apart(model, 0.01), lr=5e-3)
    schedule = OneCycleLR(optimizer, 5e-3, total_steps=160)
    return classification(model, images(), optimizer, seed=seed, size=32, steps=150, scheduler=schedule, clip=1.0)


class Restyler(nn.Module):
    """An image-to-image network with InstanceNorm between its convolutions."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in ((1, 12), (12, 12), (12, 12)):
            layers += [nn.Conv2d(a, b, 3, 1, 1, bias=False), nn.InstanceNorm2d(b, affine=True), nn.ReLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Conv2d(12, 1, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def edges(x: Tensor) -> Tensor:
    """The style to learn: edges of each image, at equal contrast."""
    kernel = torch.tensor([[-1.0, -1, -1], [-1, 8, -1], [-1, -1, -1]])[None, None] / 8
    drawn = F.conv2d(x, kernel, padding=1)
    return drawn / drawn.std((1, 2, 3), keepdim=True).clamp(min=0.1)


def instance_norm_for_style(seed: int) -> Setup:
    torch.manual_seed(seed)
    data, model = digits(), Restyler()
    return Setup(
        model,
        nn.MSELoss(),
        shuffled(data.x, edges(data.x), size=8, steps=300, seed=seed),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        chunks(data.x_eval, edges(data.x_eval)),
        minus_squared_error,
        steps=300,
    )


class UNet(nn.Module):
    """Two scales with a skip between them."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.down = conv_block(1, 12, norm, 1)
        self.low = nn.Sequential(conv_block(12, 24, norm, 2), conv_block(24, 24, norm, 1))
        self.up = nn.ConvTranspose2d(24, 12, 2, 2)
        self.last = nn.Sequential(conv_block(24, 12, norm, 1), nn.Conv2d(12, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        out: Tensor = self.last(torch.cat([high, self.up(self.low(high))], 1))
        return out


def denoising(model: nn.Module, seed: int, size: int) -> Setup:
    """Digits from noisy digits."""
    data, generator = digits(), torch.Generator().manual_seed(seed)
    x, x_eval = (clean + 0.7 * torch.randn(clean.shape, generator=generator) for clean in (data.x, data.x_eval))
    return Setup(
        model,
        nn.MSELoss(),
        shuffled(x, data.x, size=size, steps=200, seed=seed),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        chunks(x_eval, data.x_eval),
        minus_squared_error,
        steps=200,
    )


def unet_batch_norm(seed: int) -> Setup:
    torch.manual_seed(seed)
    return denoising(UNet(nn.BatchNorm2d), seed, 32)


def unet_group_norm(seed: int) -> Setup:
    torch.manual_seed(seed)
    return denoising(UNet(group_norm), seed, 8)


CASES = (
    Case("cnn-batchnorm", "held-out", batch_norm),
    Case("cnn-batchnorm-batch-128", "held-out", batch_of_128),
    Case("cnn-decay-on-everything", "held-out", decay_on_everything),
    Case("cnn-groupnorm-batch-4", "held-out", group_norm_batch_of_4),
    Case("cnn-groupnorm-accumulated", "held-out", accumulated_group_norm),
    Case("cnn-batchnorm-accumulated", "held-out", accumulated_large_micro_batches),
    Case("cnn-one-cycle", "held-out", one_cycle),
    Case("instancenorm-for-style", "held-out", instance_norm_for_style),
    Case("unet-batchnorm", "held-out", unet_batch_norm),
    Case("unet-groupnorm", "held-out", unet_group_norm),
)
