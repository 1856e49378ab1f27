"""A batch of images that a network flattens at once is a batch of vectors, of which every pair is known."""

import pytest
import torch
from torch import Tensor, nn

import normscope as ns

X = torch.randn(24, 3, 4, 4, generator=torch.Generator().manual_seed(0))
X += torch.randn(24, 1, 1, 1, generator=torch.Generator().manual_seed(1))


class Reads(nn.Module):
    """An MLP that is handed what a function makes of its input."""

    def __init__(self, flatten) -> None:
        super().__init__()
        self.flatten = flatten
        self.layers = ns.models.MLP(48, 5, width=60, norm="batch")

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.flatten(x))


@pytest.mark.parametrize(
    "flatten",
    [
        nn.Flatten(),
        lambda x: torch.flatten(x, 1),
        lambda x: x.flatten(1),
        lambda x: x.view(x.size(0), -1),
        lambda x: x.reshape(x.size(0), -1),
        nn.Flatten(-3, 3),
        lambda x: torch.flatten(x, start_dim=1),
        lambda x: x.view(-1, 48),
        lambda x: x.view(x.shape[0], x.shape[1] * x.shape[2] * x.shape[3]),
        lambda x: torch.reshape(x, (len(X), -1)),
    ],
)
def test_as_vectors(flatten):
    wanted = ns.predict(ns.models.MLP(48, 5, width=60, norm="batch"), (48,), batch=X.flatten(1))
    assert ns.predict(Reads(flatten), (3, 4, 4), batch=X).lambda_max == wanted.lambda_max


def test_images_that_go_on_as_images_are_not():
    net = nn.Sequential(nn.Conv2d(3, 48, 4), nn.BatchNorm2d(48), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5))
    assert "images" in " ".join(ns.predict(net, (3, 4, 4), batch=X).warnings)
    assert ns.predict(Reads(nn.Flatten()), (3, 4, 4), batch=X, theory="paper").lambda_max > 0


def test_images_that_go_on_as_images_too_are_not():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.conv, self.norm = nn.Linear(48, 60), nn.Conv2d(3, 60, 4), nn.BatchNorm1d(60)
            self.last = nn.Linear(60, 5)

        def forward(self, x: Tensor) -> Tensor:
            both = self.dense(x.flatten(1)) + self.conv(x.view(-1, 3, 4, 4)).flatten(1)
            return self.last(torch.relu(self.norm(both)))

    assert "images" in " ".join(ns.predict(Both(), (3, 4, 4), batch=X).warnings)
