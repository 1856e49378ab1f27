"""Learning rates beyond what the network bears."""

import torch
from torch import Tensor, nn

from faults.case import Case
from faults.data import digits, minus_squared_error, shuffled
from faults.development.networks import Transformer, cnn, mlp, nothing
from faults.development.setups import adamw, byte_setup, image_setup, sgd
from normscope import Setup


def regression(seed: int, fault: bool) -> Setup:
    """Squared error on standardized targets of a network with LayerNorm."""
    torch.manual_seed(seed)
    split = digits()
    direction = torch.randn(64, 4, generator=torch.Generator().manual_seed(3)) / 8
    y, y_eval = (torch.tanh(part.flatten(1) @ direction) for part in (split.x, split.x_eval))
    model = mlp((64, 64, 64, 4), norm=nn.LayerNorm)
    return Setup(
        model,
        nn.MSELoss(),
        shuffled(split.x, y, size=64, steps=200, seed=seed),
        torch.optim.SGD(model.parameters(), 2.0 if fault else 0.1, momentum=0.9),
        eval_batches=[(split.x_eval, y_eval)],
        metric=minus_squared_error,
        steps=200,
    )


def without_batchnorm(seed: int, fault: bool) -> Setup:
    """BatchNorm was taken out for the sake of small devices; its learning rate stayed."""
    torch.manual_seed(seed)
    model = cnn(norm=nothing, depth=4)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return image_setup(model, sgd(0.3 if fault else 0.02), size=32, steps=200, seed=seed)


class DyT(nn.Module):
    """Dynamic tanh in the place of a LayerNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.5))
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * torch.tanh(self.alpha * x) + self.bias


def dynamic_tanh(seed: int, fault: bool) -> Setup:
    """DyT in the place of LayerNorm, with LayerNorm's learning rate."""
    torch.manual_seed(seed)
    model = Transformer(norm=DyT)
    return byte_setup(model, sgd(3.0 if fault else 0.1), size=16, steps=200, seed=seed)


def spikes(seed: int, fault: bool) -> Setup:
    """Adam with a rate and a beta2 at which the loss jumps again and again."""
    torch.manual_seed(seed)
    model = Transformer(layers=3)
    lr, betas = (1e-1, (0.9, 0.999)) if fault else (3e-3, (0.9, 0.95))
    return byte_setup(model, adamw(lr, betas=betas), size=16, steps=200, seed=seed, clip=None if fault else 1.0)


CASES = (
    Case("regression-far-too-fast", "development", regression, "rate-beyond-limit", fix="a rate of 0.1"),
    Case(
        "batchnorm-removed-rate-kept",
        "development",
        without_batchnorm,
        "old-rate-after-swap",
        also=("rate-beyond-limit",),
        fix="a rate of 0.02",
    ),
    Case(
        "dynamic-tanh-rate-kept",
        "development",
        dynamic_tanh,
        "old-rate-after-swap",
        "https://github.com/jiachenzhu/DyT/issues/18",
        also=("rate-beyond-limit",),
        fix="a rate of 0.1",
    ),
    Case(
        "adam-with-spikes",
        "development",
        spikes,
        "loss-spike-ahead",
        also=("rate-beyond-limit",),
        fix="a rate of 0.003, beta2 0.95 and clipping",
    ),
)
