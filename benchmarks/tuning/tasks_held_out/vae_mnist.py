"""A variational autoencoder on MNIST: BatchNorm in encoder and decoder, Bernoulli pixels, Adam."""

import torch
from batches import chunks, shuffled
from task import Parts, Task
from torch import Tensor, nn
from torch.nn import functional as F

from data import mnist

LATENT = 12
HIDDEN = 128


class VAE(nn.Module):
    """Returns the logits of the pixels, and the mean and logarithmic variance of the code.

    In eval mode the code is its mean; in train mode it is drawn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(),
            nn.Linear(784, HIDDEN),
            nn.BatchNorm1d(HIDDEN),
            nn.LeakyReLU(0.1),
            nn.Linear(HIDDEN, 2 * LATENT),
        )
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, HIDDEN),
            nn.BatchNorm1d(HIDDEN),
            nn.LeakyReLU(0.1),
            nn.Linear(HIDDEN, 784),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean
        if self.training:
            code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decoder(code), mean, log_variance


def negative_elbo(outputs: tuple[Tensor, Tensor, Tensor], y: Tensor) -> Tensor:
    """Nats per image: binary cross-entropy of the pixels plus the divergence of the code from the standard normal."""
    logits, mean, log_variance = outputs
    pixels = F.binary_cross_entropy_with_logits(logits, y, reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
    return (pixels + divergence) / len(y)


def make(seed: int) -> Parts:
    data = mnist()
    low, high = data.train[0].min(), data.train[0].max()

    def pixels(part: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        scaled = (part[0] - low) / (high - low)
        return scaled, scaled.flatten(1)

    torch.manual_seed(seed)
    return Parts(
        model=VAE(),
        loss_fn=negative_elbo,
        batches=shuffled(*pixels(data.train), batch_size=128, seed=seed),
        eval_batches=chunks(*pixels(data.validation)),
        test_batches=chunks(*pixels(data.test)),
    )


TASK = Task(
    "variational autoencoder",
    make,
    optimizer="adam",
    steps=800,
    schedule="constant",
    batch_size=128,
    normalizer="BatchNorm",
)
