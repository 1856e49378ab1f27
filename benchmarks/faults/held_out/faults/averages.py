"""Averaged weights, a teacher and a target network whose running statistics are not theirs."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.case import Case
from faults.data import accuracy, chunks, images, minus_squared_error, shuffled
from faults.held_out.networks import cnn
from normscope import Setup


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


def teacher_with_the_first_buffers(seed: int, fault: bool) -> Setup:
    torch.manual_seed(seed)
    data, model = images(), cnn()
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=32, steps=150, seed=seed),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        averaged_model=Average(model, 0.95, copy_buffers=not fault),
        steps=150,
    )


GAMMA, DRIFT = 0.8, 0.1


class Values(nn.Module):
    """A network of state values with a target network that follows it slowly."""

    def __init__(self, copy_buffers: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in ((8, 64), (64, 64)):
            layers += [nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU()]
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
    """What is seen of a place in 0 to 1: eight bumps along the way, in raw units."""
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


def target_network_without_statistics(seed: int, fault: bool) -> Setup:
    torch.manual_seed(seed)
    model, steps = Values(copy_buffers=not fault), 400
    place = torch.linspace(0, 0.999, 400)
    return Setup(
        model,
        batches=shuffled(*replay_buffer(seed), size=64, steps=steps, seed=seed),
        optimizer=torch.optim.Adam(model.online.parameters(), lr=3e-3),
        eval_batches=chunks(observed(place), true_value(place)),
        metric=minus_squared_error,
        forward=td_loss,  # type: ignore[arg-type]
        scheduler=FollowTarget(model),
        steps=steps,
    )


CASES = (
    Case(
        "teacher-with-the-first-buffers",
        "held-out",
        teacher_with_the_first_buffers,
        "averaged-weights-foreign-buffers",
        "CuriousAI/mean-teacher#9",
        fix="buffers copied with the average",
    ),
    Case(
        "target-network-without-statistics",
        "held-out",
        target_network_without_statistics,
        "averaged-weights-foreign-buffers",
        "DLR-RM/stable-baselines3#1004",
        also=("stale-running-statistics",),
        fix="running statistics copied to the target network",
    ),
)
