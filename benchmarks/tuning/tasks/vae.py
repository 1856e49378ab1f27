"""A variational autoencoder of MNIST at half size; `forward` returns the loss, which draws random numbers."""

import torch
from batches import chunks, shuffled
from networks import mlp
from task import Batch, Parts, Task
from torch import Tensor, nn

from data import mnist

PIXELS, LATENT = 196, 8


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp([PIXELS, 128, 2 * LATENT])
        self.decoder = mlp([LATENT, 128, PIXELS])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        return self.decoder(code), mean, log_variance


def negative_elbo(model: nn.Module, batch: Batch) -> Tensor:
    """Squared error of the reconstruction and the divergence of the code from a standard normal, a sample."""
    restored, mean, log_variance = model(batch[0])
    error = 0.5 * (restored - batch[0].flatten(1)).square().sum(1)
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
    return (error + divergence).mean()


def _small(part: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return nn.functional.avg_pool2d(part[0], 2), part[1]


def make(seed: int) -> Parts:
    data = mnist()
    torch.manual_seed(seed)
    return Parts(
        model=Autoencoder(),
        loss_fn=None,
        batches=shuffled(*_small(data.train), batch_size=128, seed=seed),
        eval_batches=chunks(*_small(data.validation)),
        test_batches=chunks(*_small(data.test)),
        forward=negative_elbo,
    )


TASK = Task("vae", make, optimizer="adam", steps=1500, schedule="constant", batch_size=128, normalizer="none")
