"""The networks of the papers: sizes, initial weights, and what `seed` and `norm` may and may not change."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import reference
from normscope.losses import half_sse
from normscope.models import CNN, DLN, MLP, VGG, PreActResNet18, initialize
from normscope.norms import NORM_NAMES

LINEAR = (nn.Linear, nn.Conv2d)
SMALL = {
    "MLP": (lambda **kw: MLP(12, 3, width=8, depth=3, **kw), (16, 3, 2, 2)),
    "CNN": (lambda **kw: CNN(2, 15, 3, channels=(4, 6), **kw), (8, 2, 15, 15)),
    "VGG": (lambda **kw: VGG(11, d_out=3, width=0.0625, **kw), (4, 3, 32, 32)),
    "PreActResNet18": (lambda **kw: PreActResNet18(d_out=3, width=4, **kw), (4, 3, 16, 16)),
    "DLN": (lambda **kw: DLN(k=3, width=4, dtype=torch.float32, **kw), (16, 4)),
}
# Without space there is nothing for "instance" to take statistics over.
PAIRS = [(m, n) for m in SMALL for n in NORM_NAMES if not (n == "instance" and m in ("MLP", "DLN"))]


def count(model):
    return sum(p.numel() for p in model.parameters())


def linears(model):
    return [layer for layer in model.modules() if isinstance(layer, LINEAR)]


def random(shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def test_vgg16_has_13_convolutions_and_one_linear_map():
    model = VGG(norm="batch")
    convs = [layer for layer in model if isinstance(layer, nn.Conv2d)]
    assert [c.out_channels for c in convs] == [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6
    assert [type(layer) for layer in linears(model)].count(nn.Linear) == 1
    pairs = zip([3, *(c.out_channels for c in convs)], [c.out_channels for c in convs], strict=False)
    assert count(model) == sum(9 * a * b + b + 2 * b for a, b in pairs) + 5130
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in model) == 5


def test_vgg11_and_widths():
    assert len(linears(VGG(11))) == 9
    assert [c.out_channels for c in linears(VGG(11, width=0.25))[:-1]] == [16, 32, 64, 64, 128, 128, 128, 128]
    with pytest.raises(ValueError, match="11 or 16 layers; got depth=13"):
        VGG(13)


def test_mlp_sizes():
    model = MLP(norm="batch")
    assert [tuple(layer.weight.shape) for layer in linears(model)] == [
        (1000, 784),
        (1000, 1000),
        (1000, 1000),
        (10, 1000),
    ]
    assert count(model) == 785_000 + 2 * 1_001_000 + 10_010 + 3 * 2000
    assert [layer.in_features for layer in linears(MLP(5, 2, depth=1))] == [5]


def test_resnet18_sizes():
    # 3x3 convolutions (c_in to c, then c to c three times, in each stage), 1x1 shortcuts, two norms a block
    # (the first of c_in), the last norm, and the linear map.
    model = PreActResNet18(norm="batch")
    assert len(linears(model)) == 1 + 16 + 3 + 1
    expected = 9 * 3 * 64 + 2 * 512 + 5130
    for c_in, c in ((64, 64), (64, 128), (128, 256), (256, 512)):
        expected += 9 * c * (c_in + 3 * c) + (c_in * c if c_in != c else 0) + 2 * (c_in + 3 * c)
    assert count(model) == expected == 11_172_170
    small = PreActResNet18(width=2)
    assert small.blocks(small.stem(random((2, 3, 32, 32)))).shape == (2, 16, 4, 4)


@pytest.mark.parametrize(
    ("size", "padding", "sizes", "fan_in"),
    [(28, 0, [13, 6, 2], 360), (32, 0, [15, 7, 3], 810), (28, 1, [14, 7, 4], 1440), (32, 1, [16, 8, 4], 1440)],
)
def test_cnn_sizes_of_the_paper(size, padding, sizes, fan_in):
    model = CNN(1, size, padding=padding)
    x, seen = random((1, 1, size, size)), []
    for layer in model:
        x = layer(x)
        if isinstance(layer, nn.Conv2d):
            seen.append(x.shape[-1])
    assert seen == sizes
    assert linears(model)[-1].in_features == fan_in
    assert [c.out_channels for c in linears(model)[:-1]] == [30, 60, 90]
    assert x.shape == (1, 10)


def test_cnn_refuses_images_that_vanish():
    with pytest.raises(ValueError, match="leave no pixel"):
        CNN(1, 8)
    assert CNN(1, 8, padding=1)(random((1, 1, 8, 8))).shape == (1, 10)


@pytest.mark.parametrize("name", ["MLP", "CNN", "VGG"])
@pytest.mark.parametrize("norm", ["none", "l1"])
def test_order_is_linear_norm_relu(name, norm):
    layers = list(SMALL[name][0](norm=norm))
    kinds = {"none": nn.Identity, "l1": nn.Module}
    for i, layer in enumerate(layers[:-1]):
        if isinstance(layer, LINEAR):
            assert isinstance(layers[i + 1], kinds[norm])
            assert isinstance(layers[i + 2], nn.ReLU)
    assert isinstance(layers[-1], nn.Linear)


@pytest.mark.parametrize("name", SMALL)
def test_same_initial_weights_for_every_norm(name):
    make, _ = SMALL[name]
    plain = [p for layer in linears(make(seed=5)) for p in layer.parameters()]
    for norm in NORM_NAMES:
        other = [p for layer in linears(make(seed=5, norm=norm)) for p in layer.parameters()]
        assert all(torch.equal(p, q) for p, q in zip(plain, other, strict=True))
    assert not torch.equal(plain[0], linears(make(seed=6))[0].weight)


@pytest.mark.parametrize("norm", ["none", "batch", "noisy", "noise"])
@pytest.mark.parametrize("name", SMALL)
def test_reproducible_from_the_seed_and_global_generator_not_moved(name, norm):
    make, shape = SMALL[name]
    torch.rand(3)
    state = torch.get_rng_state()
    first = make(norm=norm, seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(1)
    second = make(norm=norm, seed=2)
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    assert torch.equal(first(random(shape)), second(random(shape)))
    noise = [tuple(t.tolist()) for key, t in first.state_dict().items() if key.endswith("noise_state")]
    assert len(set(noise)) == len(noise)


@pytest.mark.parametrize(("name", "norm"), PAIRS)
def test_every_norm_runs_and_gets_gradients(name, norm):
    make, shape = SMALL[name]
    model, x = make(norm=norm, gamma=0.5), random(shape)
    weights = [
        m.weight for m in model.modules() if getattr(m, "weight", None) is not None and not isinstance(m, LINEAR)
    ]
    assert bool(weights) == (norm not in ("none", "noise"))
    assert all(torch.equal(w, torch.full_like(w, 0.5)) for w in weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(x).square().sum()
        assert torch.isfinite(loss)
        loss.backward()
        optimizer.step()
    moved = [not torch.equal(a, p) for a, p in zip(before, model.parameters(), strict=True)]
    # Biases before a mean subtraction have no effect; every layer's weight must move.
    assert all(m for m, p in zip(moved, model.parameters(), strict=True) if p.ndim > 1)


def test_instance_without_space_says_what_to_use():
    with pytest.raises(ValueError, match="InstanceNorm takes statistics over space.*Use 'layer'"):
        MLP(4, 2, width=3, norm="instance")(random((2, 4)))


def test_unknown_norm_names_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'batch'"):
        MLP(4, 2, norm="bach")


@pytest.mark.parametrize("init", ["glorot", "mean_field"])
def test_initial_statistics(init):
    """Within 5 standard errors: one false alarm in 1.7e6 for each Gaussian mean; the seed is fixed."""
    sigma_w2, sigma_b2 = 1.5, 0.25
    model = nn.Sequential(nn.Linear(300, 200), nn.Conv2d(30, 40, 3), nn.Conv1d(20, 30, 5), nn.Conv3d(4, 5, (1, 2, 3)))
    fans = [(300, 200), (30 * 9, 40 * 9), (20 * 5, 30 * 5), (4 * 6, 5 * 6)]
    initialize(model, init, seed=1, sigma_w2=sigma_w2, sigma_b2=sigma_b2)
    for layer, (fan_in, fan_out) in zip(model, fans, strict=True):
        w_variance = 2 / (fan_in + fan_out) if init == "glorot" else sigma_w2 / fan_in
        for parameter, variance in ((layer.weight, w_variance), (layer.bias, sigma_b2)):
            values = parameter.detach().double().numpy().ravel()
            n = values.size
            if parameter is layer.bias and init == "glorot":
                assert not values.any()
                continue
            assert abs(values.mean()) < 5 * math.sqrt(variance / n)
            # (1/n) sum x^2 of a Gaussian has variance 2 variance^2 / n.
            assert abs((values**2).mean() - variance) < 5 * variance * math.sqrt(2 / n)


@pytest.mark.parametrize("init", ["glorot", "mean_field"])
def test_draws_do_not_depend_on_the_dtype(init):
    single, double = nn.Linear(3, 4), nn.Linear(3, 4, dtype=torch.float64)
    for layer in (single, double):
        initialize(layer, init, seed=9)
    assert torch.equal(single.weight, double.weight.float())


def test_initial_weights_are_gaussian():
    """Fourth moment 3 sigma^4, its standard error sqrt(96 / n) sigma^4; 5 of them. A uniform draw has 1.8."""
    model = MLP(200, 10, width=200, depth=2, sigma_w2=1.0)
    w = model[1].weight.detach().double().numpy().ravel() * math.sqrt(200)
    assert abs((w**4).mean() - 3) < 5 * math.sqrt(96 / w.size)


def test_defaults_are_the_papers():
    mlp, vgg, resnet = MLP(20, width=400, depth=3), VGG(width=0.25), PreActResNet18(width=8)
    bias = mlp[4].bias.detach().double()
    assert abs(bias.square().mean() - 0.5) < 5 * 0.5 * math.sqrt(2 / 400)
    assert not any(layer.bias.any() for layer in linears(vgg))
    assert not resnet.linear.bias.any()
    assert all(layer.bias is None for layer in linears(resnet)[:-1])


def test_unknown_init_lists_the_known():
    with pytest.raises(ValueError, match="'glorot', 'mean_field'; got 'he'"):
        MLP(4, 2, init="he")


def test_dln_equals_the_loops_of_the_reference():
    model = DLN(k=5, width=4)
    x, a = random((6, 4), torch.float64), torch.randn(4, 4, generator=torch.Generator().manual_seed(1)).double()
    weights = [layer.weight.detach().numpy() for layer in model.linears]
    loss = half_sse(model(x), x @ a.T).item()
    assert loss == pytest.approx(reference.deep_linear_loss(weights, x.numpy(), a.numpy()), rel=1e-12)


@pytest.mark.parametrize("norm_last", [True, False])
def test_dln_normalizes_the_last_layer_or_not(norm_last):
    model, x = DLN(k=3, width=4, norm="batch", norm_last=norm_last), random((6, 4), torch.float64)
    h = x.numpy()
    for i, layer in enumerate(model.linears):
        h = h @ layer.weight.detach().numpy().T
        if norm_last or i < 2:
            h = reference.batch_norm(h, np.ones(4), np.zeros(4), 1e-5)[0]
    np.testing.assert_allclose(model(x).detach().numpy(), h, rtol=1e-11, atol=1e-11)


def test_dln_of_the_paper():
    model = DLN(norm="batch")
    assert [tuple(layer.weight.shape) for layer in model.linears] == [(10, 10)] * 25
    assert all(layer.bias is None for layer in model.linears)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert count(DLN()) == 2500
