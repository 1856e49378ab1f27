"""Tasks that several held-out cases share: contrastive learning, values from a replay buffer, averages, fine-tuning."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.data import Split, accuracy, chunks, digits, shuffled
from faults.held_out.networks import Norm, mlp
from faults.training import train
from normscope import Setup


def classification(
    model: nn.Module, data: Split, optimizer: torch.optim.Optimizer, *, seed: int, size: int, steps: int, **more: Any
) -> Setup:
    """A training of `model` to classify `data`; `more` are further fields of the `Setup`."""
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=size, steps=steps * more.get("accumulate", 1), seed=seed),
        optimizer,
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=steps,
        **more,
    )


class Average(nn.Module):
    """An exponential average of a model's parameters. The buffers are copied, or stay those of the start."""

    def __init__(self, model: nn.Module, decay: float, copy_buffers: bool) -> None:
        super().__init__()
        self.decay, self.copy_buffers = decay, copy_buffers
        self.module = copy.deepcopy(model).requires_grad_(False)

    def forward(self, *inputs: Tensor) -> Tensor:
        out: Tensor = self.module(*inputs)
        return out

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        for mine, new in zip(self.module.parameters(), model.parameters(), strict=True):
            mine.lerp_(new, 1 - self.decay)
        if self.copy_buffers:
            for mine, new in zip(self.module.buffers(), model.buffers(), strict=True):
                mine.copy_(new)


GAMMA, DRIFT = 0.8, 0.1


class Values(nn.Module):
    """A network of state values with a target network that follows it slowly."""

    def __init__(self, copy_buffers: bool, norm: Norm = nn.BatchNorm1d) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in ((8, 64), (64, 64)):
            layers += [nn.Linear(a, b, bias=False), norm(b), nn.ReLU()]
        self.online = nn.Sequential(*layers, nn.Linear(64, 1))
        self.target = Average(self.online, 0.95, copy_buffers)
        self.target.eval()

    def train(self, mode: bool = True) -> "Values":
        super().train(mode)
        self.target.eval()
        return self

    def forward(self, state: Tensor) -> Tensor:
        out: Tensor = self.online(state).squeeze(-1)
        return out


class FollowTarget:
    """Moves the target network after each step, where a scheduler would step."""

    def __init__(self, model: Values) -> None:
        self.model = model

    def step(self) -> None:
        self.model.target.update_parameters(self.model.online)


def observed(place: Tensor) -> Tensor:
    """The observation of a place in 0 to 1: eight bumps along the way, in raw units."""
    centres = torch.linspace(0, 1, 8)
    return 20 + 10 * (-((place[:, None] - centres) ** 2) / 0.02).exp()


def replay_buffer(seed: int, count: int = 2000) -> tuple[Tensor, ...]:
    """States, rewards, next states and ends of a walk that drifts to 1, where a reward of 1 waits."""
    place = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    after = place + DRIFT
    end = (after >= 1).float()
    return observed(place), end, observed(after.clamp(max=1.0)), end


def true_value(place: Tensor) -> Tensor:
    """The discounted reward: one step before the end it is 1, and GAMMA less for each further step."""
    left = ((1 - place) / DRIFT).ceil().clamp(min=1)
    return GAMMA ** (left - 1)


def td_loss(model: Values, batch: tuple[Tensor, ...]) -> Tensor:
    """The squared temporal-difference error against the target network."""
    state, reward, after, end = batch
    with torch.no_grad():
        goal = reward + GAMMA * (1 - end) * model.target(after).squeeze(-1)
    return F.mse_loss(model(state), goal)


class Encoder(nn.Module):
    """Unit vectors of digits. In training, BatchNorm runs on shares of `share` samples, as on several devices."""

    def __init__(self, share: int | None = None, norm: Norm = nn.BatchNorm1d) -> None:
        super().__init__()
        self.share = share
        self.net = mlp([64, 128, 128, 32], norm)

    def forward(self, x: Tensor) -> Tensor:
        parts = x.split(self.share) if self.training and self.share else (x,)
        return F.normalize(torch.cat([self.net(part) for part in parts]), dim=-1)


def info_nce(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The contrastive loss of two views, keys without gradient."""
    queries = model(batch[0])
    with torch.no_grad():
        keys = model(batch[1])
    return F.cross_entropy(queries @ keys.t() / 0.1, torch.arange(len(queries)))


def hidden(x: Tensor, seed: int) -> Tensor:
    """A view: half of the pixels hidden, noise on all."""
    generator = torch.Generator().manual_seed(seed)
    seen = torch.rand(x.shape, generator=generator) > 0.5
    return x.where(seen, torch.tensor(0.0)) + 0.3 * torch.randn(x.shape, generator=generator)


def neighbour_accuracy(outputs: Tensor, y: Tensor) -> float:
    """The share of the first half's embeddings whose nearest one in the second half has their label."""
    half = len(outputs) // 2
    nearest = (outputs[:half] @ outputs[half:].t()).argmax(-1)
    return float((y[half:][nearest] == y[:half]).float().mean())


class Frozen(nn.Sequential):
    """Layers whose BatchNorms stay in eval mode whatever mode is asked for."""

    def train(self, mode: bool = True) -> "Frozen":
        super().train(mode)
        for layer in self.modules():
            if isinstance(layer, nn.BatchNorm1d):
                layer.training = False
        return self


def pretrained(seed: int, sizes: list[int], classes: Tensor, steps: int = 150) -> nn.Sequential:
    """An MLP with BatchNorm trained on the digits of `classes`."""
    data, model = digits(), mlp(sizes)
    chosen = torch.isin(data.y, classes)
    batches = shuffled(data.x[chosen], data.y[chosen], size=64, steps=steps, seed=seed + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(Setup(model, nn.CrossEntropyLoss(), batches, optimizer, steps=steps))
    return model
