"""What predict says where it cannot answer, or can with a doubt."""

import math

import pytest
import torch
from torch import nn

import normscope as ns


def net() -> nn.Module:
    return ns.models.MLP(20, 5, width=60, norm="batch")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"momentum": 1.0}, "momentum is at least 0 and less than 1"),
        ({"momentum": -0.1}, "momentum is at least 0 and less than 1"),
        ({"loss": "hinge"}, "loss must be one of"),
        ({"stats": "running"}, "stats must be one of"),
        ({"theory": "papers"}, "Did you mean 'paper'"),
        ({"batch_size": 0}, "batch_size is a whole number"),
        ({"batch_size": 1}, "batch_size=1 leaves one value"),
        ({"batch": torch.zeros(8, 21)}, "samples of input_shape"),
        ({"batch": torch.full((8, 20), math.nan)}, "not finite"),
        ({"batch": torch.zeros(8, 20, dtype=torch.complex64)}, "complex"),
        ({"parameters": lambda name, p: False}, "no trainable parameters"),
    ],
)
def test_options(options, words):
    with pytest.raises(ValueError, match=words):
        ns.predict(net(), (20,), **options)


@pytest.mark.parametrize("shape", [(), (0,), (-3,), (1, 2, 3, 4), (20.0,)])
def test_shapes_that_are_none(shape):
    with pytest.raises(ValueError, match="input_shape is"):
        ns.predict(net(), shape)


def test_a_shape_that_does_not_fit_names_the_layer():
    with pytest.raises(ValueError, match=r"'1' \(Linear\) takes 20 features and gets 21"):
        ns.predict(net(), (21,))
    with pytest.raises(ValueError, match=r"Pass input_shape=\(20,\) \(--input 20\)"):
        ns.predict(net(), (21,))
    cnn = ns.models.CNN(3, 32, 10)
    with pytest.raises(ValueError, match=r"'6' \(Conv2d\) a window of 3x3 does not fit into 1x1"):
        ns.predict(cnn, (3, 7, 7))
    with pytest.raises(
        ValueError, match=r"'0' \(Conv2d\) takes 3 channels and gets 1\. Pass input_shape=\(3, 32, 32\)"
    ):
        ns.predict(cnn, (1, 32, 32))
    with pytest.raises(ValueError, match=r"Pass input_shape=\(3, 32, 30\).*with its channels first"):
        ns.predict(cnn, (32, 30, 3))
    with pytest.raises(ValueError, match=r"'0' \(Conv2d\) takes \(N, C, H, W\).*Pass input_shape=\(3, H, W\)"):
        ns.predict(cnn, (3072,))


def test_sizes_inside_the_network_that_do_not_fit():
    """Whether another input_shape would mend it is said."""
    conv, last = nn.Conv2d(3, 40, 3), nn.Linear(40 * 6 * 6, 5)
    with pytest.raises(ValueError, match="'2'.*takes 1440 features and gets 4000.*pass the shape that the network was"):
        ns.predict(nn.Sequential(conv, nn.Flatten(), last), (3, 12, 12))
    with pytest.raises(ValueError, match="'1'.*takes 30 channels and gets 40.*whatever input_shape is"):
        ns.predict(nn.Sequential(conv, nn.Conv2d(30, 5, 3)), (3, 12, 12))


def test_channels_of_a_flattened_image():
    """1,440 features, not 40: no size is wrong, but features of one channel have something in common."""
    after = nn.Sequential(nn.Conv2d(3, 40, 3), nn.Flatten(), nn.BatchNorm1d(40 * 6 * 6), nn.Linear(40 * 6 * 6, 5))
    with pytest.raises(ValueError, match=r"'2' \(BatchNorm1d\).*each of the 1440 values.*before the flattening"):
        ns.predict(after, (3, 8, 8))
    first = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 5))
    with pytest.raises(ValueError, match=r"'1' \(BatchNorm1d\).*pass input_shape=\(64,\)"):
        ns.predict(first, (1, 8, 8))
    assert ns.predict(first, (64,)).lambda_max > 0


def test_an_output_that_is_an_image():
    with pytest.raises(ValueError, match="needs one output vector"):
        ns.predict(nn.Conv2d(3, 4, 3), (3, 8, 8))


def test_an_output_of_two_heads():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(20, 5), nn.Linear(20, 3)

        def forward(self, x):
            return torch.cat([self.one(x), self.two(x)], 1)

    with pytest.raises(ValueError, match="The output concatenates 2 tensors"):
        ns.predict(Heads(), (20,))


def test_gamma_of_zero_is_answered_with_a_warning():
    model = ns.models.MLP(20, 5, width=60, norm="batch", gamma=0.0)
    found = ns.predict(model, (20,))
    assert any("gamma is zero" in warning for warning in found.warnings)
    # Nothing but the output's bias and beta are left.
    assert math.isfinite(found.lambda_max)
    assert found.layers[0]["mean"] == 0


def test_weights_of_zero_are_answered_with_a_warning():
    model = net()
    nn.init.zeros_(model[1].weight)
    found = ns.predict(model, (20,))
    assert any("the variance before it is zero" in warning for warning in found.warnings)
    assert math.isfinite(found.lambda_max)
    silent = nn.Linear(20, 5, bias=False)
    nn.init.zeros_(silent.weight)
    assert math.isfinite(ns.predict(silent, (20,)).lambda_max)


def test_narrow_networks_are_answered_with_a_warning():
    found = ns.predict(ns.models.MLP(20, 5, width=16, norm="batch"), (20,))
    assert any("16 channels: outside the theory's reach" in warning for warning in found.warnings)
    assert math.isnan(found.first_guess)
    assert "start training with" not in str(found) + found.verdict(0.1).text
    assert str(found).startswith("No learning rate is named from theory: the narrowest hidden layer has 16 channels")


def test_large_corrections_of_data_modes_are_warned_of():
    found = ns.predict(ns.models.PreActResNet18(width=32, norm="batch"), (3, 8, 8), batch_size=64)
    assert any("Data modes decide" in warning for warning in found.warnings)


def test_small_batches_are_answered_with_a_warning():
    found = ns.predict(net(), (20,), batch_size=3)
    assert any("degrees of freedom" in warning for warning in found.warnings)


@pytest.mark.parametrize("batch", [None, torch.randn(9, 20, generator=torch.Generator().manual_seed(0))])
def test_parameters_off_the_way_to_the_output(batch):
    class WithMore(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.unused = net(), nn.Linear(3, 3)

        def forward(self, x):
            return self.net(x)

    with pytest.raises(ValueError, match="lies between input and output"):
        ns.predict(WithMore(), (20,), batch=batch, parameters=lambda name, p: name.startswith("unused"))


def test_weights_of_zero_above_all_that_is_trained():
    model = net()
    nn.init.zeros_(model[-1].weight)
    found = ns.predict(model, (20,), parameters=lambda name, p: name == "1.weight")
    assert (found.lambda_max, found.eta_star) == (0, math.inf)
    assert any("No trained parameter changes the output" in warning for warning in found.warnings)


@pytest.mark.parametrize("eps", [-1.0, math.nan])
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_an_eps_that_is_none(norm, eps):
    model = ns.models.MLP(20, 5, width=60, norm=norm)
    model[2].eps = eps
    with pytest.raises(ValueError, match=r"'2' .*an eps of"):
        ns.predict(model, (20,))


def test_running_variances_below_zero():
    model = net().eval()
    model[2].running_var[3] = -2
    with pytest.raises(ValueError, match=r"'2' .*running variance of -2"):
        ns.predict(model, (20,))


def test_nothing_to_predict():
    with pytest.raises(ValueError, match="no trainable parameters"):
        ns.predict(nn.ReLU(), (20,))
    with pytest.raises(ValueError, match="at least two outputs"):
        ns.predict(nn.Linear(20, 1), (20,), "cross_entropy")
