"""VAE, GAN, contrastive learning, recurrent networks and values, with nothing wrong."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from faults.case import Case
from faults.data import chunks, digits, images, minus_squared_error, shuffled, text
from faults.held_out.networks import Norm, minus_token_loss, mlp, token_loss
from faults.held_out.tasks import (
    Encoder,
    FollowTarget,
    Values,
    classification,
    hidden,
    info_nce,
    neighbour_accuracy,
    observed,
    replay_buffer,
    td_loss,
    true_value,
)
from normscope import Setup


class VAE(nn.Module):
    """A variational autoencoder of digits with an eight-dimensional code; in eval mode the code is its mean."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp([64, 64, 16], norm), mlp([8, 64, 64], norm)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
        return self.decoder(mean + (0.5 * log_variance).exp() * noise), mean, log_variance


def elbo(outputs: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    """Reconstruction and a small divergence from the prior, per pixel."""
    decoded, mean, log_variance = outputs
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1).mean()
    return F.mse_loss(decoded, x) + 0.1 * divergence / 64


def reconstruction(outputs: tuple[Tensor, Tensor, Tensor], x: Tensor) -> float:
    """Minus the squared error of the reconstruction."""
    return minus_squared_error(outputs[0], x)


def vae(seed: int, norm: Norm) -> Setup:
    torch.manual_seed(seed)
    data, model = digits(), VAE(norm)
    x, x_eval = data.x.flatten(1), data.x_eval.flatten(1)
    return Setup(
        model,
        elbo,
        shuffled(x, x, size=64, steps=250, seed=seed),
        Adam(model.parameters(), lr=3e-3),
        chunks(x_eval, x_eval),
        reconstruction,
        steps=250,
    )


def vae_batch_norm(seed: int) -> Setup:
    return vae(seed, nn.BatchNorm1d)


def vae_layer_norm(seed: int) -> Setup:
    return vae(seed, nn.LayerNorm)


class GAN(nn.Module):
    """A generator of digits from noise, and a discriminator; calling it generates."""

    def __init__(self, generator_norm: Norm, discriminator_norm: Norm) -> None:
        super().__init__()
        self.generator = mlp([16, 64, 64, 64], generator_norm)
        self.discriminator = mlp([64, 64, 1], discriminator_norm, lambda: nn.LeakyReLU(0.2))

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.generator(z)
        return out


def adversarial_step(model: GAN, batch: tuple[Tensor, Tensor], optimizer: torch.optim.Optimizer) -> Tensor:
    """One step of both networks; the discriminator sees real and generated digits in one batch."""
    z, real = batch
    made = model.generator(z)
    labels = torch.cat([torch.ones(len(real), 1), torch.zeros(len(made), 1)])
    optimizer.zero_grad()
    loss = F.binary_cross_entropy_with_logits(model.discriminator(torch.cat([real, made.detach()])), labels)
    loss.backward()
    fooled = model.discriminator(torch.cat([real, made]))[len(real) :]
    parameters = list(model.generator.parameters())
    gradients = torch.autograd.grad(F.softplus(-fooled).mean(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    return loss.detach()


def minus_moment_distance(made: Tensor, real: Tensor) -> float:
    """Minus the mean squared difference of the pixels' means and deviations."""
    means = (made.mean(0) - real.mean(0)).square().mean()
    return -float(means + (made.std(0) - real.std(0)).square().mean())


def gan(seed: int, generator_norm: Norm, discriminator_norm: Norm) -> Setup:
    torch.manual_seed(seed)
    data, model, steps = digits(), GAN(generator_norm, discriminator_norm), 300
    generator = torch.Generator().manual_seed(seed)
    z, z_eval = (torch.randn(len(part), 16, generator=generator) for part in (data.x, data.x_eval))
    return Setup(
        model,
        batches=shuffled(z, data.x.flatten(1), size=64, steps=steps, seed=seed),
        optimizer=Adam(model.parameters(), lr=1e-3, betas=(0.5, 0.999)),
        eval_batches=chunks(z_eval, data.x_eval.flatten(1), size=400),
        metric=minus_moment_distance,
        training_step=adversarial_step,  # type: ignore[arg-type]
        steps=steps,
    )


def gan_layer_norm_in_the_discriminator(seed: int) -> Setup:
    return gan(seed, nn.BatchNorm1d, nn.LayerNorm)


def contrastive(seed: int, norm: Norm, size: int) -> Setup:
    torch.manual_seed(seed)
    data, model, steps = digits(), Encoder(norm=norm), 200
    first = torch.cat([hidden(data.x, view) for view in range(0, 8, 2)])
    second = torch.cat([hidden(data.x, view) for view in range(1, 9, 2)])
    return Setup(
        model,
        batches=shuffled(first, second, size=size, steps=steps, seed=seed),
        optimizer=Adam(model.parameters(), lr=1e-3),
        eval_batches=chunks(data.x_eval, data.y_eval, size=400),
        metric=neighbour_accuracy,
        forward=info_nce,
        steps=steps,
    )


def contrastive_whole_batch(seed: int) -> Setup:
    return contrastive(seed, nn.BatchNorm1d, 256)


def contrastive_layer_norm(seed: int) -> Setup:
    return contrastive(seed, nn.LayerNorm, 64)


def values(seed: int, norm: Norm) -> Setup:
    torch.manual_seed(seed)
    model, steps = Values(copy_buffers=True, norm=norm), 400
    place = torch.linspace(0, 0.999, 400)
    return Setup(
        model,
        batches=shuffled(*replay_buffer(seed), size=64, steps=steps, seed=seed),
        optimizer=Adam(model.online.parameters(), lr=2e-3),
        eval_batches=chunks(observed(place), true_value(place)),
        metric=minus_squared_error,
        forward=td_loss,  # type: ignore[arg-type]
        scheduler=FollowTarget(model),
        steps=steps,
    )


def values_layer_norm(seed: int) -> Setup:
    return values(seed, nn.LayerNorm)


class LSTM(nn.Module):
    """Rows of a digit, or bytes, read by an LSTM; LayerNorm on its outputs where asked for."""

    def __init__(self, inputs: int, width: int, outputs: int, norm: bool, all_steps: bool) -> None:
        super().__init__()
        self.read = nn.Embedding(inputs, width) if all_steps else nn.Linear(inputs, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.head, self.all_steps = nn.Linear(width, outputs), all_steps

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.lstm(self.read(x))[0])
        out: Tensor = self.head(h if self.all_steps else h[:, -1])
        return out


def lstm_on_rows(seed: int) -> Setup:
    torch.manual_seed(seed)
    data, model = digits(), LSTM(8, 32, 10, norm=True, all_steps=False)
    rows = type(data)(data.x[:, 0], data.y, data.x_eval[:, 0], data.y_eval)
    return classification(model, rows, Adam(model.parameters(), 5e-3), seed=seed, size=32, steps=250, clip=1.0)


def lstm_on_bytes(seed: int) -> Setup:
    torch.manual_seed(seed)
    data, model = text(), LSTM(128, 48, 128, norm=False, all_steps=True)
    return Setup(
        model,
        token_loss,
        shuffled(data.x, data.y, size=16, steps=200, seed=seed),
        AdamW(model.parameters(), lr=5e-3),
        chunks(data.x_eval, data.y_eval, size=64),
        minus_token_loss,
        clip=1.0,
        steps=200,
    )


def regression_batch_norm(seed: int) -> Setup:
    """A regression of the mean brightness of image quarters, BatchNorm in the body, none at the end."""
    torch.manual_seed(seed)
    data = images()
    y, y_eval = (F.adaptive_avg_pool2d(x, 2).flatten(1) for x in (data.x, data.x_eval))
    model = mlp([784, 64, 64, 4])
    return Setup(
        model,
        nn.MSELoss(),
        shuffled(data.x, y, size=64, steps=200, seed=seed),
        SGD(model.parameters(), lr=0.02, momentum=0.9),
        chunks(data.x_eval, y_eval),
        minus_squared_error,
        steps=200,
    )


CASES = (
    Case("vae-batchnorm", "held-out", vae_batch_norm),
    Case("vae-layernorm", "held-out", vae_layer_norm),
    Case("gan-layernorm-in-the-discriminator", "held-out", gan_layer_norm_in_the_discriminator),
    Case("contrastive-whole-batch", "held-out", contrastive_whole_batch),
    Case("contrastive-layernorm", "held-out", contrastive_layer_norm),
    Case("values-layernorm", "held-out", values_layer_norm),
    Case("lstm-on-rows", "held-out", lstm_on_rows),
    Case("lstm-on-bytes", "held-out", lstm_on_bytes),
    Case("regression-batchnorm", "held-out", regression_batch_norm),
)
