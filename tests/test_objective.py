"""How a batch becomes outputs and a loss, in all the forms that training scripts have."""

from collections import UserDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.objective import Objective, call_model, main_output, own_loss

X, Z = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.ones(6, 3)
Y = torch.arange(6) % 3


class Two(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + 2 * b


class Optional(nn.Module):
    def forward(self, a: Any, mask: Tensor | None = None) -> Tensor:
        return (a[0] if isinstance(a, (tuple, list)) else a) * (1 if mask is None else mask)


class Own(nn.Module):
    """A loss of its own where labels come, as Hugging Face models have."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": x} if labels is None else {"loss": F.cross_entropy(x, labels), "logits": x}


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


CE = F.cross_entropy(X, Y)


@pytest.mark.parametrize(
    ("objective", "model", "batch", "expected"),
    [
        (Objective(F.cross_entropy), nn.Identity(), (X, Y), CE),
        (Objective(F.cross_entropy), nn.Identity(), [X, Y], CE),
        (Objective(F.cross_entropy), Two(), (X, Z, Y), F.cross_entropy(X + 2 * Z, Y)),
        (Objective(F.cross_entropy), Two(), ((X, Z), Y), F.cross_entropy(X + 2 * Z, Y)),
        (Objective(F.cross_entropy), Two(), {"a": X, "b": Z, "labels": Y}, F.cross_entropy(X + 2 * Z, Y)),
        (Objective(F.cross_entropy), Two(), UserDict(a=X, b=Z, target=Y), F.cross_entropy(X + 2 * Z, Y)),
        (Objective(F.cross_entropy), Optional(), ([X, Z], Y), CE),
        (Objective(F.cross_entropy), Optional(), (X, Z * 2, Y), F.cross_entropy(2 * X, Y)),
        (Objective(F.cross_entropy), Own(), (X, Y), CE),
        (Objective(nn.CrossEntropyLoss()), Own(), {"x": X, "labels": Y}, CE),
        (Objective(lambda o, y: F.cross_entropy(o["logits"], y)), Own(), {"x": X, "labels": Y}, CE),
        (Objective(), Own(), {"x": X, "labels": Y}, CE),
        (Objective(), Own(), (X, Y), CE),
        (Objective(forward=lambda m, b: F.cross_entropy(m(b[0]), b[1])), nn.Identity(), (X, Y), CE),
        (Objective(F.cross_entropy, lambda m, b: m(b["image"])), nn.Identity(), {"image": X, "label": Y}, CE),
        (Objective(lambda o, y: F.cross_entropy(o, y)), Own(), {"x": X, "labels": Y}, None),
        (Objective(lambda o, b: F.cross_entropy(o, b["class"]), lambda m, b: m(b["x"])["logits"]), Own(),
         {"x": X, "class": Y}, CE),
    ],
)  # fmt: skip
def test_the_loss_of_a_batch(objective, model, batch, expected):
    if expected is None:
        with pytest.raises(ValueError, match="which loss_fn does not take"):
            objective(model, batch)
    else:
        assert objective(model, batch) == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("outputs", "loss", "main"),
    [
        ({"loss": CE, "logits": X}, CE, X),
        (Output(CE, X), CE, X),
        ((X, CE), CE, X),
        ((CE, X), CE, X),
        (CE, CE, None),
        ((X, Z, CE), CE, None),
    ],
)
def test_loss_and_predictions_in_what_a_model_returns(outputs, loss, main):
    assert own_loss(outputs) is loss
    assert main_output(outputs) is main


@pytest.mark.parametrize("outputs", [{"logits": X}, (X, Z), (CE, CE), None, "loss"])
def test_an_output_without_a_loss_is_named(outputs):
    with pytest.raises(ValueError, match="Without loss_fn the model or forward= must give the loss"):
        own_loss(outputs)


@pytest.mark.parametrize("batch", [X, (X,), [X]])
def test_a_batch_without_targets_is_named(batch):
    with pytest.raises(ValueError, match="a pair .x, y. or a mapping with labels; got a"):
        Objective(F.mse_loss)(nn.Identity(), batch)


def test_a_patched_forward_is_called_by_its_own_signature():
    from normscope.isolation.module_calls import answering

    model = Optional()
    with answering({"": model}, lambda name, module, forward, args, kwargs: forward(*args, **kwargs)):
        assert torch.equal(call_model(model, [X, Z]), X)
        assert torch.equal(call_model(model, (X, 2 * Z)), 2 * X)
