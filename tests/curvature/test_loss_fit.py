"""Losses that do not fit their outputs or targets: one message each, with a way out."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope import losses
from normscope.curvature import measure

N = 6
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 0, 1, 1, 0])
NUMBERS = torch.randn(N, generator=torch.Generator().manual_seed(1))


class Flat(nn.Module):
    """Outputs (N,)."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x).squeeze(1)


@pytest.mark.parametrize(
    ("model", "loss_fn", "y", "said"),
    [
        (Flat, F.cross_entropy, NUMBERS, r"one row of logits.*got outputs \(6,\) and targets \(6,\).*half_mse"),
        (Flat, nn.CrossEntropyLoss(), LABELS, "binary_cross_entropy_with_logits"),
        (Flat, lambda z, y: F.cross_entropy(z, y), LABELS, r"failed on targets \(6,\), torch.int64.*one row of logits"),
        (lambda: nn.Linear(4, 1), F.cross_entropy, LABELS * 0, "over one class is 0 whatever the output"),
        (lambda: nn.Linear(4, 1), lambda z, y: F.cross_entropy(z, y), LABELS * 0, "does not change with the outputs"),
        (lambda: nn.Linear(4, 1), lambda z, y: F.cross_entropy(z, y), LABELS, "not below the number of outputs"),
        (Flat, F.mse_loss, LABELS, r"takes numbers as targets.*torch.int64.*targets.float\(\)"),
        (Flat, F.binary_cross_entropy_with_logits, LABELS, r"takes numbers as targets.*targets.float\(\)"),
        (lambda: nn.Linear(4, 3), nn.MSELoss(), LABELS, r"of one shape; got outputs \(6, 3\).*one_hot"),
        (lambda: nn.Linear(4, 1), F.mse_loss, NUMBERS, "broadcasts or refuses"),
        (lambda: nn.Linear(4, 3), lambda z, y: (z - y).square().mean(), LABELS, "of different shapes.*one_hot"),
        (Flat, lambda z, y: -(z - y).square().mean(), NUMBERS, "bends down in the outputs"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_with_a_way_out(model, loss_fn, y, said):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=f"(?s){said}"):
        measure(model(), loss_fn, (X, y))


def test_dead_units_set_no_limit():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1, bias=False))
    nn.init.constant_(model[0].bias, -1e3)
    with pytest.raises(ValueError, match="No output changes with the parameters.*all units are dead"):
        measure(model, losses.half_mse, (X, NUMBERS[:, None]))


def test_a_batch_whose_targets_are_all_ignored_does_not_decide():
    model = nn.Linear(4, 3)
    kept, ignored = (X, LABELS), (X, LABELS * 0 - 100)

    def loss(z, y):
        return F.cross_entropy(z, y, reduction="sum")

    assert measure(model, loss, [ignored, kept], hessian=False, over="batches").loss_kind == "cross_entropy"
    with pytest.raises(ValueError, match="all targets of this batch are ignored"):
        measure(model, loss, ignored)


def test_a_loss_that_is_not_convex_in_the_outputs_is_noted():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    y = F.one_hot(LABELS, 3).float()
    found = measure(model, lambda z, t: (z.sigmoid() - t).square().sum(), (X, y))
    assert found.loss_kind == "other"
    assert any("is not convex in the outputs" in note for note in found.notes)
    assert any("neither cross-entropy nor squared error: its gradient" in note for note in found.notes)
