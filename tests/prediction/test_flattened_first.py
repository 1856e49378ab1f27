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
    ],
)
def test_as_vectors(flatten):
    wanted = ns.predict(ns.models.MLP(48, 5, width=60, norm="batch"), (48,), batch=X.flatten(1))
    assert ns.predict(Reads(flatten), (3, 4, 4), batch=X).lambda_max == wanted.lambda_max


def test_images_that_go_on_as_images_are_not():
    net = nn.Sequential(nn.Conv2d(3, 48, 4), nn.BatchNorm2d(48), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5))
    assert "images" in " ".join(ns.predict(net, (3, 4, 4), batch=X).warnings)
    assert ns.predict(Reads(nn.Flatten()), (3, 4, 4), batch=X, theory="paper").lambda_max > 0
