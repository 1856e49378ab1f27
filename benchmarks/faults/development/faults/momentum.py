"""BatchNorm's momentum is turned round, or too small for the planned steps."""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.case import Case
from faults.data import Drawn, text
from faults.development.networks import cnn, pooled
from faults.development.setups import adamw, byte_setup, decayed, digit_setup, sgd
from normscope import Setup


class ConvolutionBank(nn.Module):
    """Causal convolutions over bytes, each with a BatchNorm, as at the entrance of a speech synthesizer."""

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 24)
        self.convolutions = nn.ModuleList(nn.Conv1d(24, 16, kernel) for kernel in (1, 2, 3, 4))
        self.norms = nn.ModuleList(nn.BatchNorm1d(16, momentum=momentum) for _ in range(4))
        self.join, self.join_norm = nn.Conv1d(64, 48, 1), nn.BatchNorm1d(48, momentum=momentum)
        self.head = nn.Linear(48, 128)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x).transpose(1, 2)
        parts = [
            F.relu(norm(convolution(F.pad(hidden, (convolution.kernel_size[0] - 1, 0)))))
            for convolution, norm in zip(self.convolutions, self.norms, strict=True)
        ]
        hidden = F.relu(self.join_norm(self.join(torch.cat(parts, 1))))
        return self.head(hidden.transpose(1, 2))


def speech_bank(seed: int, fault: bool) -> Setup:
    """The last batch of an epoch has one window of 8 bytes, and its statistics are all that is left of the training."""
    torch.manual_seed(seed)
    model = ConvolutionBank(0.99 if fault else 0.01)
    split, steps = text(8), 6 * 51
    x, y = split.x[:6401], split.y[:6401]

    def draw(generator: torch.Generator) -> Sequence[Tensor]:
        return torch.randperm(len(x), generator=generator).split(128)

    return byte_setup(
        model, adamw(3e-3), size=128, steps=steps, seed=seed, length=8, batches=Drawn((x, y), steps, seed, draw)
    )


def pooled_head(seed: int, fault: bool) -> Setup:
    """A head with a BatchNorm on averages over the image; the running statistics are those of the last 4 images."""
    torch.manual_seed(seed)
    model = pooled(norm=partial(nn.BatchNorm1d, momentum=0.99 if fault else 0.01))
    return decayed(digit_setup(model, sgd(0.02), size=4, steps=500, seed=seed))


def slow_statistics(seed: int, fault: bool) -> Setup:
    torch.manual_seed(seed)
    model = cnn(norm=partial(nn.BatchNorm2d, momentum=0.001 if fault else 0.1))
    return digit_setup(model, sgd(0.1), size=32, steps=150, seed=seed)


CASES = (
    Case(
        "speech-bank-momentum",
        "development",
        speech_bank,
        "momentum-inverted",
        "https://github.com/r9y9/tacotron_pytorch/issues/19",
        also=("last-batch-of-one",),
        fix="momentum 0.01",
    ),
    Case(
        "head-momentum-from-keras",
        "development",
        pooled_head,
        "momentum-inverted",
        "https://github.com/fastestimator/fastestimator/pull/1201",
        also=("small-batch-noise",),
        fix="momentum 0.01",
    ),
    Case(
        "slow-running-statistics",
        "development",
        slow_statistics,
        "momentum-too-small",
        also=("stale-running-statistics",),
        fix="momentum 0.1",
    ),
)
