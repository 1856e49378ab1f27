"""Where the theory is out of its depth the result says so."""

import json
import math

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import normscope as ns
from normscope.cli import app
from normscope.theory.gaussian import RELU, Activation, length_slope
from normscope.theory.softmax import curvature


def mlp(width: int = 100, depth: int = 3, outputs: int = 5, act: type[nn.Module] = nn.ReLU, beta: float = 0.0):
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Linear(50 if i == 0 else width, width), nn.BatchNorm1d(width), act()]
        nn.init.constant_(layers[-2].bias, beta)
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def warned(words: str, *args: object, **options: object) -> bool:
    return any(words in warning for warning in ns.predict(*args, **options).warnings)


def test_sparse_activations():
    """beta of -1 is 4 times too low with three hidden layers: the lengths of samples run apart."""
    assert warned("differences in length", mlp(beta=-1.0), (50,))
    assert warned("differences in length", mlp(beta=-0.5), (50,))
    assert not warned("differences in length", mlp(), (50,))
    assert not warned("differences in length", mlp(beta=1.0), (50,))


def test_a_warning_says_by_how_much():
    """As multiples of the answer, in the result and in its words."""
    plain, sparse = ns.predict(mlp(), (50,), "half_mse"), ns.predict(mlp(beta=-1.0), (50,), "half_mse")
    assert plain.calibrated_range == (0.9, 1.2)
    assert sparse.calibrated_range == (0.9, 4.0)
    assert "Measured on similar networks: 0.9 to 1.2 times this lambda_max (means over seeds)" in str(plain)
    assert "measured at 0.9 to 4 times this lambda_max" in str(sparse)
    assert ns.predict(mlp(act=nn.Tanh), (50,), "half_mse", batch_size=16).calibrated_range[0] < 0.7
    assert ns.predict(mlp(), (50,), "cross_entropy").calibrated_range[1] > 1.25
    assert json.loads(sparse.to_json())["calibrated_range"] == [0.9, 4.0]


def test_data_modes_of_large_batches():
    net = mlp(act=nn.Tanh)
    assert warned("is large beside 100 channels", net, (50,), batch_size=64)
    assert not warned("is large beside", net, (50,), batch_size=32)
    assert not warned("is large beside", mlp(), (50,), batch_size=64)


@pytest.mark.parametrize("beta", [-1.0, 0.0, 0.5])
def test_the_slope_of_the_length_map(beta):
    """Against a sample of more than the usual length among independent others."""
    z = torch.randn(2_000_000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    excess = 0.02

    def length(scale: float) -> float:
        centre = torch.relu(beta + z).mean()
        return float(((torch.relu(beta + scale * z) - centre) ** 2).mean())

    found = (length(math.sqrt(1 + excess)) / length(1.0) - 1) / excess
    assert length_slope(RELU, 1.0, beta) == pytest.approx(found, rel=0.03)
    assert length_slope(Activation("linear", lambda u: u), 2.0, beta) == pytest.approx(1.0)


def test_data_modes_of_small_batches_under_batch_norm():
    net = mlp(act=nn.Tanh)
    assert warned("too high", net, (50,), batch_size=16)
    assert not warned("too high", net, (50,), batch_size=128)
    x = torch.randn(128, 50, generator=torch.Generator().manual_seed(0))
    assert not warned("clusters", net, (50,), batch=x)
    images = torch.randn(128, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    convolutional = nn.Sequential(nn.Conv2d(2, 60, 5), nn.BatchNorm2d(60), nn.Tanh(), nn.Flatten(), nn.Linear(60, 10))
    assert warned("tight clusters", convolutional, (2, 5, 5), batch=images)


def test_batch_norm_after_an_activation_with_samples_of_unequal_length():
    """Measured at 0.56 to 0.78 times the answer with 1 to 5 layers of width 300."""
    x = torch.randn(64, 50, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.3, 2, 64)[:, None]
    after = nn.Sequential(nn.Linear(50, 100), nn.ReLU(), nn.BatchNorm1d(100), nn.Linear(100, 5))
    assert warned("after an activation", after, (50,), batch=x)
    assert not warned("after an activation", after, (50,), batch_size=64)
    assert not warned("after an activation", mlp(act=nn.Tanh), (50,), batch=x)


@pytest.mark.parametrize(("m", "high"), [(3, 2e5), (4, 30.0)])
def test_three_samples(m, high):
    """Five layers of width 300 were measured at 1,300 and 3 times the answer."""
    assert ns.predict(mlp(), (50,), "half_mse", batch_size=m).calibrated_range[1] == high


def test_samples_that_are_alike_and_no_eps():
    net = nn.Sequential(nn.Linear(50, 100), nn.BatchNorm1d(100, eps=0.0), nn.ReLU(), nn.Linear(100, 5))
    with pytest.raises(ValueError, match=r"'1' \(BatchNorm1d\) divides by zero"):
        ns.predict(net, (50,), batch=torch.ones(64, 50))


def test_images_of_unequal_length():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(64, 2, 5, 5, generator=generator)
    unequal = images * torch.exp(0.5 * torch.randn(64, 1, 1, 1, generator=generator))
    net = nn.Sequential(nn.Conv2d(2, 60, 5), nn.BatchNorm2d(60), nn.ReLU(), nn.Flatten(), nn.Linear(60, 10))
    assert warned("differ in length", net, (2, 5, 5), batch=unequal)
    assert not warned("differ in length", net, (2, 5, 5), batch=images)


def test_a_batch_in_few_directions():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(128, 3, generator=generator) @ torch.randn(3, 50, generator=generator)
    assert warned("lies in 3 directions", mlp(), (50,), batch=x)
    assert not warned("directions", mlp(), (50,), batch=torch.randn(128, 50, generator=generator))
    # Below three 1/s^2 has no mean, and without eps no number either.
    assert warned("degrees of freedom", mlp(), (50,), batch=x[:, :1].expand(128, 50))


def test_as_many_outputs_as_channels():
    net = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(100, 100), nn.ReLU())], nn.Linear(100, 100))
    assert warned("100 outputs are many", net, (100,))
    assert not warned("outputs are many", mlp(200, outputs=2), (50,))


@pytest.mark.parametrize(("outputs", "most"), [(100, 1.9), (1000, 2.5)])
def test_many_more_outputs_than_channels(outputs, most):
    """Width 64, 1000 outputs, two seeds: 2.1 to 2.4 times the answer with and without BatchNorm."""
    net = nn.Sequential(*[layer for _ in range(2) for layer in (nn.Linear(64, 64), nn.ReLU())], nn.Linear(64, outputs))
    assert ns.predict(net, (64,), "half_mse", batch_size=64).calibrated_range == (0.8, most)


@pytest.mark.parametrize("outputs", [10, 100, 101, 300])
@pytest.mark.parametrize(("q", "q_xy"), [(1.3, 1.0), (0.2, 0.1), (6.0, 5.0)])
def test_cross_entropy_of_many_outputs(outputs, q, q_xy):
    """Against other draws, with the whole matrix."""
    generator = torch.Generator().manual_seed(7)
    found = []
    for _ in range(30):
        shared = q_xy**0.5 * torch.randn(outputs, generator=generator, dtype=torch.float64)
        own = (q - q_xy) ** 0.5 * torch.randn(200, outputs, generator=generator, dtype=torch.float64)
        p = (shared + own).softmax(-1)
        found.append(torch.linalg.eigvalsh(p.mean(0).diag() - p.T @ p / len(p))[-1])
    draws = torch.stack(found)
    error = float(draws.std()) / 30**0.5
    assert curvature(outputs, q, q_xy) == pytest.approx(float(draws.mean()), abs=4 * error + 0.05 * float(draws.mean()))


def test_cross_entropy_has_no_cliff():
    assert curvature(101, 1.3, 1.0) == pytest.approx(curvature(100, 1.3, 1.0), rel=0.1)
    assert curvature(1000, 0.0, 0.0) == 1 / 1000


def test_padding_of_average_pooling_lowers_large_images_too():
    """By the share of taps that are padding; the exact form of a smaller image says by how much."""

    def lam(size: int, limit: int) -> float:
        net = nn.Sequential(nn.Conv2d(3, 40, 1), nn.ReLU(), nn.AvgPool2d(5, 1, 2), nn.Flatten())
        net.append(nn.Linear(40 * size * size, 5))
        torch.manual_seed(0)
        for layer in (net[0], net[4]):
            nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
            nn.init.zeros_(layer.bias)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("normscope.theory.site_pairs.exact_sites", lambda layers: limit)
            return ns.predict(net, (3, size, size), batch_size=16).lambda_max

    assert lam(14, 16) == pytest.approx(lam(14, 300), rel=0.05)


def test_wide_windows_of_padded_pooling_without_borders():
    def net(window: int) -> nn.Module:
        pool = nn.AvgPool2d(window, 1, window // 2)
        return nn.Sequential(
            nn.Conv2d(3, 40, 1), nn.ReLU(), pool, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 5)
        )

    assert warned("windows of 7x7", net(7), (3, 66, 66))
    assert not warned("without their borders", net(3), (3, 66, 66))
    assert not warned("without their borders", net(7), (3, 8, 8))


def test_one_sample_has_no_data_modes():
    found = ns.predict(nn.Linear(20, 5), (20,), batch_size=1)
    assert (found.mode, found.data_mode) == ("mean", -math.inf)
    assert "data mode is" not in str(found)


def test_borders_are_spoken_of_where_they_were_left_out():
    small = nn.Sequential(nn.Conv2d(3, 40, 3), nn.ReLU(), nn.Flatten(), nn.Linear(40 * 16, 5))
    large = nn.Sequential(nn.Conv2d(3, 40, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 5))
    assert not any("borders" in note for note in ns.predict(small, (3, 6, 6)).notes)
    assert any("borders" in note for note in ns.predict(large, (3, 66, 66)).notes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": [1, 2]}, "batch is a tensor of samples"),
        ({"momentum": "a"}, "momentum is a number"),
        ({"batch_size": True}, "batch_size is a whole number"),
    ],
)
def test_options_of_the_wrong_kind(options, words):
    with pytest.raises(ValueError, match=words):
        ns.predict(nn.Linear(20, 5), (20,), **options)


def test_models_without_weights_yet():
    with pytest.raises(ValueError, match=r"'weight' is on the meta device.*to_empty"):
        ns.predict(nn.Linear(20, 5, device="meta"), (20,))
    with pytest.raises(ValueError, match="Run one forward first"):
        ns.predict(nn.LazyLinear(5), (20,))


def test_the_verdict_in_json(tmp_path):
    (tmp_path / "judged_net.py").write_text("import torch\n\ndef build():\n    return torch.nn.Linear(20, 5)\n")
    arguments = ["predict", f"{tmp_path / 'judged_net.py'}:build", "--input", "20", "--json", "--lr", "0.01"]
    found = json.loads(CliRunner().invoke(app, arguments).output)
    assert found["verdict"]["good"] is True
    assert found["verdict"]["text"].startswith("The local quadratic is stable: lr = 0.01 is")


@pytest.mark.parametrize(("channels", "warned"), [(4, True), (8, False)])
@pytest.mark.parametrize("shape", [(3,), (3, 6, 6)])
def test_groups_of_few_channels(shape, channels, warned):
    """Places of an image do not make up for channels: four of 8x8 were at 0.73 times the answer after four layers."""
    norm = [nn.GroupNorm(64 // channels, 64), nn.ReLU()]
    layers = {1: [nn.Linear(3, 64), *norm], 3: [nn.Conv2d(3, 64, 3), *norm, nn.AdaptiveAvgPool2d(1), nn.Flatten()]}
    found = ns.predict(nn.Sequential(*layers[len(shape)], nn.Linear(64, 10)), shape, "half_mse")
    assert any(f"groups of {channels} channels" in warning for warning in found.warnings) == warned
    # Three inputs are few, whatever the groups.
    usual = (0.69, 1.5) if len(shape) == 1 else (0.9, 1.2)
    assert (found.calibrated_range != usual) == warned


def test_two_values_that_normalize_each_other():
    """They become 1 and -1: at two samples lambda was measured at 0.006 times the answer, and at 500,000 times."""
    with pytest.raises(ValueError, match=r"'1' \(GroupNorm\) normalizes two values"):
        ns.predict(nn.Sequential(nn.Linear(20, 64), nn.GroupNorm(32, 64), nn.ReLU(), nn.Linear(64, 5)), (20,))
    by_batch = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5))
    with pytest.raises(ValueError, match=r"'1' \(BatchNorm1d\).*batch_size=2 leaves two values"):
        ns.predict(by_batch, (20,), batch_size=2)


@pytest.mark.parametrize(("large", "most"), [(40, 1.5), (16, 1.9), (4, 15.0)])
def test_gammas_that_leave_few_channels(large, most):
    """Two layers of 80, statistics held, four seeds: 1.21, 1.60 and 7.9 times the answer with so many gammas not 0."""
    net = ns.models.MLP(20, 10, width=80, norm="batch")
    with torch.no_grad():
        net[2].weight[large:] = 0
    found = ns.predict(net, (20,), "half_mse")
    assert found.calibrated_range[1] == most
    assert any(f"80 of them count as {large}.0" in warning for warning in found.warnings) == (large < 30)


@pytest.mark.parametrize(("times", "most"), [(1, 2.2), (4, 9.0)])
def test_cross_entropy_of_large_outputs(times, most):
    """Softmax is flat for some samples and bent for others: measured at 2.0 times the answer with times = 4."""
    net = ns.models.MLP(50, 10, width=80, norm="batch")
    with torch.no_grad():
        net[-1].weight *= times
    found = ns.predict(net, (50,), "cross_entropy", 96)
    assert found.calibrated_range[1] == most
    assert any("Outputs differ between samples" in warning for warning in found.warnings) == (times > 1)


@pytest.mark.parametrize(("layers", "reach"), [(3, 1.9), (30, 6.0)])
def test_depth_beside_width(layers, reach):
    """Thirty layers of 80, without normalizer, five seeds: 5.2 times the answer."""
    found = ns.predict(
        nn.Sequential(*[k for _ in range(layers) for k in (nn.Linear(80, 80), nn.ReLU())], nn.Linear(80, 10)),
        (80,),
        "half_mse",
    )
    assert (found.calibrated_range[1] > reach) == (layers == 30)
    assert any("whose inverses have a sum of 0.38" in warning for warning in found.warnings) == (layers == 30)


def random_net(depth: int, width: int, inputs: int, act: type[nn.Module], norm=None, sigma_w2=1.0) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Linear(width if i else inputs, width), *([norm(width)] if norm else []), act()]
    layers.append(nn.Linear(width, 10))
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=(sigma_w2 / layer.in_features) ** 0.5)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("net", "inputs", "measured"),
    [
        (random_net(2, 152, 64, nn.Tanh, ns.norms.RMSNorm), 64, 1.24),
        (random_net(2, 152, 64, nn.Hardtanh, ns.norms.RMSNorm), 64, 1.29),
        (random_net(6, 600, 64, nn.Tanh, sigma_w2=2.0), 64, 1.35),
        (random_net(4, 192, 20, nn.ELU, nn.BatchNorm1d, 2.0), 20, 0.76),
        (random_net(1, 600, 4, nn.Tanh, sigma_w2=2.0), 4, 0.79),
    ],
)
def test_ranges_hold_networks_that_were_measured(net, inputs, measured):
    """Bounded activations, RMSNorm, few inputs; over seeds."""
    low, high = ns.predict(net, (inputs,), "half_mse").calibrated_range
    assert low <= measured <= high
    assert high / low <= 3


def test_a_range_of_more_than_a_factor_of_three_names_no_rate():
    net = mlp()
    known, refused = ns.predict(net, (50,), "half_mse"), ns.predict(net, (50,), "half_mse", 4)
    assert (known.refusal, known.first_guess) == ("", pytest.approx(known.eta_star / 2))
    assert math.isnan(refused.first_guess)
    assert "0.69 to 30 times" in refused.refusal or "0.9 to 30 times" in refused.refusal
    assert "ns.measure" in refused.refusal
    assert str(refused).splitlines()[0] == refused.refusal == refused.advice
    stored = json.loads(refused.to_json())
    assert (stored["refusal"], stored["first_guess"]) == (refused.refusal, "nan")
    assert "To start training with" not in refused.verdict(refused.eta_star).text
    printed = ns.predict(net, (50,), "half_mse", 4, theory="paper")
    assert math.isnan(printed.first_guess)
    assert any("name no learning rate" in note for note in printed.notes)


def test_gradients_that_shrink_are_no_doubt():
    """Nine random networks whose squared gradients shrink by 1e3 to 1e8 were at 0.93 to 1.04 times the answer."""
    shrinks = ns.predict(random_net(7, 200, 60, nn.Sigmoid, nn.LayerNorm, 2.0), (60,), "half_mse")
    assert any("shrink" in warning for warning in shrinks.warnings)
    assert shrinks.refusal == ""
