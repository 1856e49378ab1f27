"""The kind of a loss that a model computes itself, at one point."""

import pytest
import torch
from torch.nn import functional as F

from normscope.loss_kinds import CROSS_ENTROPY, OTHER, SQUARED
from normscope.loss_kinds.computed_by_model import kind_inside

GENERATOR = torch.Generator().manual_seed(0)
ROWS, SEQUENCE, IMAGE = (torch.randn(*s, generator=GENERATOR) for s in ((6, 5), (3, 4, 5), (2, 5, 3, 3)))
LABELS, TOKENS, PIXELS = (torch.randint(5, s, generator=GENERATOR) for s in ((6,), (3, 4), (2, 3, 3)))
BINARY, MASK = (ROWS > 0.3).float(), torch.tensor([1.0, 1, 0, 1, 0, 1]).view(6, 1)
WEIGHTS = torch.tensor([1.0, 2, 3, 4, 5])
IGNORED = LABELS.clone().index_fill(0, torch.tensor([0, 3]), -100)

LOSSES = {
    "rows": (ROWS, lambda z: F.cross_entropy(z, LABELS), CROSS_ENTROPY),
    "sum": (ROWS, lambda z: 3 * F.cross_entropy(z, LABELS, reduction="sum"), CROSS_ENTROPY),
    "ignored": (ROWS, lambda z: F.cross_entropy(z, IGNORED), CROSS_ENTROPY),
    "weights": (ROWS, lambda z: F.cross_entropy(z, LABELS, weight=WEIGHTS.to(z)), CROSS_ENTROPY),
    "smoothing": (ROWS, lambda z: F.cross_entropy(z, LABELS, label_smoothing=0.1), CROSS_ENTROPY),
    "shifted tokens": (SEQUENCE, lambda z: F.cross_entropy(z[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()),
                       CROSS_ENTROPY),
    "pixels": (IMAGE, lambda z: F.cross_entropy(z, PIXELS), CROSS_ENTROPY),
    "labels apart": (ROWS, lambda z: F.binary_cross_entropy_with_logits(z, BINARY), CROSS_ENTROPY),
    "one logit": (ROWS[:, :1], lambda z: F.binary_cross_entropy_with_logits(z, BINARY[:, :1]), CROSS_ENTROPY),
    "squared": (ROWS, lambda z: F.mse_loss(z, BINARY), SQUARED),
    "masked": (ROWS, lambda z: (MASK * (z - BINARY).square()).sum(), SQUARED),
    "one number": (ROWS[:, 0], lambda z: F.mse_loss(z, BINARY[:, 0]), SQUARED),
    "focal": (ROWS, lambda z: ((1 - z.softmax(1)[range(6), LABELS]) ** 2 * F.cross_entropy(z, LABELS, reduction="none")
                               ).mean(), OTHER),
    "huber": (ROWS, lambda z: F.huber_loss(z, BINARY.to(z), delta=0.5), OTHER),
    "absolute": (ROWS, lambda z: F.l1_loss(z, BINARY), OTHER),
    "softmax squared": (ROWS, lambda z: F.mse_loss(z.softmax(1), BINARY), OTHER),
    "negative": (ROWS, lambda z: -F.mse_loss(z, BINARY), OTHER),
    "entropy and penalty": (ROWS, lambda z: F.cross_entropy(z, LABELS) + z.square().mean(), OTHER),
    "nothing": (ROWS, lambda z: (0 * z).sum(), OTHER),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loss_inside_a_model_is_recognised_at_one_point(name, dtype):
    outputs, loss, expected = LOSSES[name]
    weight = torch.ones((), dtype=dtype, requires_grad=True)
    z = outputs.to(dtype) * weight
    assert kind_inside(loss(z), z).name == expected


def test_a_loss_without_predictions_is_another():
    w = torch.ones(3, requires_grad=True)
    assert "no predictions" in kind_inside(w.square().sum(), None).why
    assert "no predictions" in kind_inside(w.square().sum(), 2 * w).why
