"""Running statistics that do not fit what is evaluated."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.case import Case
from faults.data import chunks, digits, images
from faults.development.networks import cnn
from faults.development.setups import adamw, digit_setup, image_setup, sgd
from normscope import Setup


class RowReader(nn.Module):
    """A recurrent network that reads an image row by row, with one BatchNorm for all rows or one for each."""

    def __init__(self, shared: bool, width: int = 48) -> None:
        super().__init__()
        self.width, self.shared = width, shared
        self.into, self.again = nn.Linear(8, width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(1 if shared else 8))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = x.new_zeros(len(x), self.width)
        for number, row in enumerate(x[:, 0].unbind(1)):
            norm = self.norms[0 if self.shared else number]
            hidden = hidden + F.relu(norm(self.into(row) + self.again(hidden)))
        return self.head(hidden)


def shared_over_rows(seed: int, fault: bool) -> Setup:
    torch.manual_seed(seed)
    return digit_setup(RowReader(shared=fault), sgd(0.02), size=64, steps=200, seed=seed)


def forgotten_buffers(seed: int, fault: bool) -> Setup:
    """A trained body is loaded by its parameters alone, so its buffers are those of a new network; a head trains."""
    trained = _trained_body()
    torch.manual_seed(seed)
    model = cnn(depth=4)
    known = dict(trained.named_parameters()) if fault else trained.state_dict()
    model.load_state_dict({**model.state_dict(), **known})
    model[-1].reset_parameters()
    for module in list(model)[:-1]:
        module.requires_grad_(False).eval()
    return image_setup(model, adamw(1e-2), size=32, steps=100, seed=seed)


_BODIES: list[nn.Module] = []


def _trained_body() -> nn.Module:
    """A small network trained on the images for a few steps, made once."""
    if not _BODIES:
        torch.manual_seed(17)
        model, split = cnn(depth=4), images()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for step in range(150):
            rows = torch.arange(32 * step, 32 * step + 32) % len(split.x)
            optimizer.zero_grad()
            F.cross_entropy(model(split.x[rows]), split.y[rows]).backward()
            optimizer.step()
        _BODIES.append(model)
    return _BODIES[0]


def other_preprocessing(seed: int, fault: bool) -> Setup:
    """Training images are standardized; those of the evaluation come as pixels between 0 and 16."""
    torch.manual_seed(seed)
    split = digits()
    x_eval = 6 * split.x_eval + 5 if fault else split.x_eval
    return digit_setup(cnn(), sgd(0.05), size=32, steps=150, seed=seed, eval_batches=chunks(x_eval, split.y_eval))


def no_running_statistics(seed: int, fault: bool) -> Setup:
    """track_running_stats=False, and an evaluation of images sorted by class in batches of eight."""
    torch.manual_seed(seed)
    split = digits()
    order = split.y_eval.argsort()
    model = cnn(norm=lambda channels: nn.BatchNorm2d(channels, track_running_stats=not fault))
    eval_batches = chunks(split.x_eval[order], split.y_eval[order], size=8)
    return digit_setup(model, sgd(0.1), size=64, steps=150, seed=seed, eval_batches=eval_batches)


def dropout_first(seed: int, fault: bool) -> Setup:
    """Dropout before each BatchNorm; after the fix, once before the head."""
    torch.manual_seed(seed)
    widths, layers = (64, 64, 64, 64, 64), [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs)]
        layers += [nn.Dropout(0.7)] if fault else []
        layers += [nn.BatchNorm1d(outputs), nn.ReLU()]
    model = nn.Sequential(*layers, *([] if fault else [nn.Dropout(0.7)]), nn.Linear(64, 10))
    return digit_setup(model, sgd(0.05), size=64, steps=200, seed=seed)


CASES = (
    Case(
        "batchnorm-shared-over-rows",
        "development",
        shared_over_rows,
        "stale-running-statistics",
        "https://discuss.pytorch.org/t/model-eval-gives-incorrect-loss-for-model-with-batchnorm-layers/7561",
        fix="a BatchNorm for each row",
    ),
    Case(
        "buffers-not-loaded",
        "development",
        forgotten_buffers,
        "stale-running-statistics",
        fix="buffers loaded with the parameters",
    ),
    Case(
        "evaluation-in-pixels",
        "development",
        other_preprocessing,
        "shifted-evaluation-data",
        fix="the preprocessing of training",
    ),
    Case(
        "no-running-statistics",
        "development",
        no_running_statistics,
        "train-mode-at-evaluation",
        "https://github.com/speediedan/finetuning-scheduler/issues/13",
        fix="track_running_stats=True",
    ),
    Case(
        "dropout-before-each-batchnorm",
        "development",
        dropout_first,
        "dropout-before-batchnorm",
        fix="one dropout after the last BatchNorm",
    ),
)
