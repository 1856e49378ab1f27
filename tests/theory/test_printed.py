"""The theory of Wei et al. 2019 as printed, against a transcription of its own."""

import json
from math import inf, pi

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

import reference_meanfield as reference
from normscope.theory import printed

PAPER = (784, 1000, 1000, 1000, 10)
MNIST = {"channels": (1, 30, 60, 90), "sites": (784, 169, 36, 4), "filters": (9, 9, 9)}
CIFAR = {"channels": (3, 30, 60, 90), "sites": (1024, 225, 49, 9), "filters": (9, 9, 9)}


def _same(found, expected, *, layers):
    for name, by_layer in expected.items():
        first = 0 if name.startswith("q_hat") else 1
        values = dict(enumerate(getattr(found, name), first))
        for layer, value in values.items():
            # The transcription of convolutions has no pairs of sites in dense layers.
            if layer in by_layer:
                assert value == pytest.approx(by_layer[layer], rel=1e-12, abs=1e-300), (name, layer)
        assert len(values) == layers
    assert found.lambda_max == pytest.approx(sum(expected["f"].values()), rel=1e-12)


variances = st.floats(0.05, 5)


@given(
    widths=st.lists(st.integers(1, 2000), min_size=2, max_size=7),
    sw2=variances,
    sb2=st.floats(0, 3),
    gamma=st.none() | st.floats(0.01, 8),
    q0=st.floats(0.1, 4),
    c=st.floats(-0.2, 0.99),
)
@settings(deadline=None, derandomize=True, max_examples=100)
def test_dense_equals_the_transcription(widths, sw2, sb2, gamma, q0, c):
    found = printed.dense(widths, sigma_w2=sw2, sigma_b2=sb2, gamma=gamma, q0=q0, q0_xy=c * q0)
    _same(found, reference.dense(widths, sw2, sb2, gamma, q0, c * q0), layers=len(widths) - 1)


@given(
    layers=st.lists(st.tuples(st.integers(1, 100), st.integers(1, 400), st.integers(1, 25)), min_size=1, max_size=5),
    sw2=variances,
    sb2=st.floats(0, 3),
    gamma=st.none() | st.floats(0.01, 8),
    q0=st.floats(0.1, 4),
    c=st.floats(-0.2, 0.99),
)
@settings(deadline=None, derandomize=True, max_examples=100)
def test_convolutional_equals_the_transcription(layers, sw2, sb2, gamma, q0, c):
    channels, sites, filters = [3], [1024], []
    for width, k, f in layers:
        channels.append(width)
        sites.append(k)
        filters.append(f)
    data = {"q0": q0, "q0_xy": c * q0}
    found = printed.convolutional(channels, sites, filters, sigma_w2=sw2, sigma_b2=sb2, gamma=gamma, **data)
    expected = reference.convolutional(channels, sites, filters, sw2, sb2, gamma, **data)
    _same(found, expected, layers=len(filters) + 1)


@given(data=st.data(), count=st.integers(1, 5), hidden=st.lists(st.integers(1, 500), max_size=3), conv=st.booleans())
@settings(deadline=None, derandomize=True, max_examples=100)
def test_layers_that_differ_equal_the_transcription(data, count, hidden, conv):
    def draw(strategy, size):
        return data.draw(st.lists(strategy, min_size=size, max_size=size))

    def settings_of(layers):
        gammas = draw(st.none() | st.floats(0.01, 8), layers - 1)
        return draw(variances, layers), draw(st.floats(0, 3), layers), gammas

    if not conv:
        widths = draw(st.integers(1, 2000), count + 1)
        sw2, sb2, gamma = settings_of(count)
        found = printed.dense(widths, sigma_w2=sw2, sigma_b2=sb2, gamma=gamma, q0=1.3, q0_xy=0.4)
        _same(found, reference.dense(widths, sw2, sb2, gamma, 1.3, 0.4), layers=count)
        return
    net = draw(st.integers(1, 100), count + 1), draw(st.integers(1, 400), count + 1), draw(st.integers(1, 25), count)
    layers = count + 1 + len(hidden)
    sw2, sb2, gamma = settings_of(layers)
    found = printed.convolutional(*net, hidden, sigma_w2=sw2, sigma_b2=sb2, gamma=gamma, q0=1.3, q0_xy=0.4)
    _same(found, reference.convolutional(*net, sw2, sb2, gamma, 1.3, 0.4, hidden), layers=layers)


def test_dense_layers_have_no_pairs_of_sites():
    """One delta goes to all sites of the map: what they share is q_tilde_xy of the first dense layer."""
    found = printed.convolutional(**MNIST, hidden=(500, 100))
    assert found.q_tilde_ab[3:] == found.q_tilde_xy[3:]
    assert found.q_ab[3:] == found.q_xy[3:]
    assert any("A dense layer has one site" in said for said in found.conventions)


def test_conventions_name_what_the_print_contradicts():
    vanilla, normed = printed.dense(PAPER), printed.convolutional(**MNIST, gamma=1.0, sigma_w2=[1.0, 2.0, 2.0, 2.0])
    assert any("Claim 6.6 and (118)" in said for said in vanilla.conventions)
    for part in ("Claim 6.6 and (118)", "(43) prints sigma_l^l", "(52) and (53)", "that of layer l + 1"):
        assert any(part in said for said in normed.conventions), part
    assert not any("(43)" in said or "layer l + 1, whose" in said for said in vanilla.conventions)


def test_numbers_of_numpy():
    found = printed.dense(np.array(PAPER), sigma_w2=np.full(4, 2.0), gamma=np.ones(3), q0=np.float64(1))
    assert found == printed.dense(PAPER, gamma=1.0)


def test_numbers_of_the_paper():
    vanilla = printed.dense(PAPER)
    assert vanilla.lambda_max == pytest.approx(2234.17, abs=0.005)
    assert vanilla.eta_star(0.9) == pytest.approx(1.70e-3, abs=5e-6)
    values = [printed.dense(PAPER, gamma=g).lambda_max for g in (0.1, 0.5, 1, 2, 3, 5)]
    assert values == pytest.approx([1.61, 47.5, 230, 1045, 2432, 6885], rel=3e-3)


def test_batch_norm_and_vanilla_cross_where_the_paper_says_and_where_the_correction_does():
    vanilla = printed.dense(PAPER).lambda_max
    crossing = brentq(lambda g: printed.dense(PAPER, gamma=g).lambda_max - vanilla, 1, 5)
    assert crossing == pytest.approx(2.879, abs=1e-3)  # the paper's "gamma <~ 3"
    assert reference.frozen_dense(1000, 1.0) == pytest.approx(361.5, rel=1e-3)
    corrected = brentq(lambda g: reference.frozen_dense(1000, g) - vanilla, 1, 5)
    assert corrected == pytest.approx(2.486, abs=1e-3)


@pytest.mark.parametrize(
    ("net", "vanilla", "batch_norm"), [(MNIST, 9.87e4, 6704), (CIFAR, 2.0e5, 1.39e4)], ids=["MNIST", "CIFAR"]
)
def test_convolutional_numbers(net, vanilla, batch_norm):
    assert printed.convolutional(**net).lambda_max == pytest.approx(vanilla, rel=0.015)
    assert printed.convolutional(**net, gamma=1.0).lambda_max == pytest.approx(batch_norm, rel=2e-3)


def test_printed_backward_recursion_vanishes_where_the_explosion_rate_says_it_grows():
    """E-MF-6: with q^l - q_xy^l in the place of q^l the growth would be pi / (pi - 1) for every layer."""
    found = printed.dense((784, *[1000] * 6, 10), gamma=1.0, sigma_b2=0.0)
    assert found.q_tilde[2] / found.q_tilde[3] == pytest.approx(1.0)
    variance = [q - q_xy for q, q_xy in zip(found.q, found.q_xy, strict=True)]
    right = [2 / 2 * 1.0**2 / s2 for s2 in variance]
    assert right[2:] == pytest.approx([pi / (pi - 1)] * 5)
    with_bias = printed.dense((784, *[1000] * 6, 10), gamma=1.0)
    assert with_bias.q_tilde[2] < with_bias.q_tilde[3]


def test_the_base_cases_of_section_3_1_1_are_impossible():
    """E-MF-4: qh^0 = 0 and qh_xy^0 = 1 give c_xy = (0.5 + 2) / 0.5 = 5."""
    with pytest.raises(ValueError, match=r"math domain|expected a number"):
        reference.dense(PAPER, 2.0, 0.5, q0=0.0, q0_xy=1.0)
    with pytest.raises(ValueError, match=r"\|q0_xy\| <= q0; got q0 = 0.0 and q0_xy = 1.0"):
        printed.dense(PAPER, q0=0.0, q0_xy=1.0)
    assert any("the other way round" in said for said in printed.dense(PAPER).conventions)


def test_layers_may_differ():
    same = printed.dense(PAPER, sigma_w2=[2.0] * 4, sigma_b2=[0.5] * 4, gamma=[1.0] * 3)
    assert same == printed.dense(PAPER, gamma=1.0)
    # Forward with the layer's own weights, backward with those of the layer after it.
    by_layer = printed.dense((50, 50, 50, 1), sigma_w2=[1.0, 2.0, 3.0], sigma_b2=0.0)
    assert by_layer.q == (1.0, 1.0, 1.5)
    assert by_layer.q_tilde == (1.5, 1.5, 1.0)
    mixed = printed.dense(PAPER, gamma=[None, 1.0, None])
    assert mixed.q_hat[1] == printed.dense(PAPER).q_hat[1]
    assert mixed.q_hat[2] == 0.5
    assert mixed.q_tilde[1] == pytest.approx(1.0 * mixed.q_tilde[2] / mixed.q[1])


def test_hidden_dense_layers_after_convolutions():
    found = printed.convolutional(**MNIST, hidden=(500, 100), gamma=1.0)
    assert len(found.f) == 6
    assert found.f[-1] == pytest.approx(100 / (2 * pi))
    assert found.f[3] == pytest.approx(360 / (2 * pi) * found.q_tilde_xy[3])


def test_results_travel():
    found = printed.convolutional(**MNIST, gamma=1.0)
    frame = found.frame()
    assert list(frame["layer"]) == [1, 2, 3, 4]
    assert frame["f"].sum() == pytest.approx(found.lambda_max)
    assert json.loads(json.dumps(found.plain(), allow_nan=False))["lambda_max"] == found.lambda_max
    assert "q_ab" not in printed.dense(PAPER).frame()
    assert sum("paper gives no" in said for said in found.conventions) == 2


def test_narrow_layers_are_answered_with_a_note():
    assert printed.dense((784, 20, 10)).notes == ("A layer of width 20 is outside the theory's reach (30 and more).",)
    assert printed.dense((784, 30, 10)).notes == ()


def test_no_curvature_allows_any_step():
    assert printed.dense(PAPER, gamma=0.0).eta_star() == inf


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sigma_w2": -1.0}, "sigma_w2 is a variance, a finite number of at least 0; got"),
        ({"sigma_b2": float("nan")}, "sigma_b2 is a variance"),
        ({"sigma_w2": [2.0, 2.0]}, "sigma_w2 is one number or one for each of 4 layers; got 2"),
        ({"gamma": [1.0]}, "gamma is one number or one for each of 3 layers; got 1"),
        ({"gamma": inf}, "gamma is a finite number"),
        ({"gamma": 0.0, "sigma_b2": 0.0}, "Layer 2 has no variance"),
        ({"sigma_w2": 0.0, "sigma_b2": 0.0}, "Layer 1 has no variance"),
        ({"q0": -1.0}, "The data need a finite q0"),
        ({"q0": "1"}, "The data need a finite q0"),
        ({"gamma": "1"}, "gamma is one number or one for each of 3 layers; got '1'"),
        ({"sigma_w2": ["1"] * 4}, "sigma_w2 is one number or one for each of 4 layers"),
        ({"gamma": 1e200}, "q of layer 2 is beyond float64"),
        ({"sigma_w2": 1e200}, "q of layer 2 is beyond float64|lambda is beyond float64"),
        ({"q0": 1e308}, "beyond float64"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        printed.dense(PAPER, **arguments)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, float("nan"), "0.9"])
def test_bad_momentum(momentum):
    with pytest.raises(ValueError, match="momentum is at least 0 and less than 1"):
        printed.dense(PAPER).eta_star(momentum)


def test_bad_shapes():
    with pytest.raises(ValueError, match="at least two numbers"):
        printed.dense((10,))
    for widths in ((0, 10), (784, 1000, 0), (784, -3, 10), (784, 10.5, 10), 784, "78"):
        with pytest.raises(ValueError, match="widths are whole numbers of at least 1; got"):
            printed.dense(widths)
    with pytest.raises(ValueError, match="one more entry than filters; got 2 channels, 2 sites and 2 filters"):
        printed.convolutional((1, 30), (784, 169), (9, 9))
    with pytest.raises(ValueError, match="sites are whole numbers of at least 1"):
        printed.convolutional((1, 30), (784, 0), (9,))
    with pytest.raises(ValueError, match="hidden are whole numbers of at least 1"):
        printed.convolutional((1, 30), (784, 169), (9,), hidden=(0,))
