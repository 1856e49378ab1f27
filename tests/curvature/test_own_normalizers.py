"""Layers of one's own in a measurement: what they compute decides, and not the names of their classes."""

import pytest
import torch
from torch import nn

from normscope import data, measure


def batch_abs(x):
    return x / (x.abs().mean(0) + 1e-5)


def layer_norm(x):
    return nn.functional.layer_norm(x, x.shape[1:])


def identity(x):
    return x


def layer_class(name, compute):
    def forward(self, x):
        return self.gain * compute(x)

    def __init__(self):
        nn.Module.__init__(self)
        self.gain = nn.Parameter(torch.ones(50))

    return type(name, (nn.Module,), {"forward": forward, "__init__": __init__})


def found_with(layer, **options):
    digits = data.digits(seed=0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 50), layer, nn.ReLU(), nn.Linear(50, 10))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = measure(model, nn.CrossEntropyLoss(), (digits.x_train[:128], digits.y_train[:128]), momentum=0.9, **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return found


@pytest.mark.parametrize(
    ("compute", "share"), [(batch_abs, 0.1), (layer_norm, 0.1), (identity, 0.01), (torch.sigmoid, 0.01)]
)
def test_the_first_guess_does_not_depend_on_the_name_of_the_class(compute, share):
    guesses = []
    for name in ("Mine", "MineNorm"):
        found = found_with(layer_class(name, compute)())
        assert found.first_guess == pytest.approx(share * found.critical_rate)
        guesses.append(found.first_guess)
    assert guesses[0] == guesses[1]


def test_only_a_normalizer_over_the_batch_gets_the_note_on_one_batch():
    said = {
        compute.__name__: any(
            "varies from batch to batch" in n for n in found_with(layer_class("Mine", compute)()).notes
        )
        for compute in (batch_abs, layer_norm, identity)
    }
    assert said == {"batch_abs": True, "layer_norm": False, "identity": False}


def test_noise_in_a_normalizer_is_the_same_in_each_call():
    def noisy(x):
        return batch_abs(x) + torch.randn_like(x)

    found = found_with(layer_class("Mine", noisy)())
    assert found.first_guess == pytest.approx(0.1 * found.critical_rate)


def test_a_layer_that_cannot_be_called_again_gets_the_smaller_rate_and_a_note():
    sizes = []

    def fussy(x):
        sizes.append(x.abs().max())
        if torch.isclose(sizes[-1], 10 * sizes[0]):
            raise ValueError("too large")
        return batch_abs(x)

    found = found_with(layer_class("FussyNorm", fussy)())
    assert found.first_guess == pytest.approx(0.01 * found.critical_rate)
    assert any("Whether 2 (FussyNorm) normalizes is not known" in note for note in found.notes)
