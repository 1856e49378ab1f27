"""The mean-field experiments and the advisers run for real, on made-up images and at a tiny size."""

import math

import numpy as np
import pytest
import torch

from normscope.data.dataset import Dataset
from normscope.papers import all_entries, all_experiments
from normscope.papers.entries import (
    advice,
    curvature_modes,
    every_norm,
    mf_affine,
    mf_fig_1,
    mf_fig_4,
    mf_modes,
    mf_onset,
)
from normscope.papers.experiment import Place
from normscope.papers.experiments import advice as advising
from normscope.papers.experiments import phases, scaling, vgg
from normscope.papers.experiments.descent import crossing, goes_above
from normscope.papers.pool import OutOfTime
from normscope.sweeping.trainer import Trainer


def _images(name):
    """Two classes of noise with a mean of their own, of the set's own shape."""
    shape = (1, 28, 28) if name == "mnist" else (3, 32, 32)
    draws = torch.Generator().manual_seed(0)
    y = torch.arange(96) % 10
    x = torch.randn(96, *shape, generator=draws) + 0.2 * y.view(-1, 1, 1, 1)
    return Dataset(name, x[:64], y[:64], x[64:], y[64:], 10)


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    monkeypatch.setattr("normscope.sweeping.networks.load_data", lambda name, *_, **__: _images(name))
    monkeypatch.setattr("normscope.data.mnist", lambda *_, **__: _images("mnist"))
    monkeypatch.setattr("normscope.data.cifar10", lambda *_, **__: _images("cifar10"))
    vgg.cifar10_on.cache_clear()
    yield
    vgg.cifar10_on.cache_clear()


TINY = {"width": 16, "channels": [4, 4, 4], "batch_size": 32, "rates": [-3.0, 2.0, 4], "values": [0.5, 2.0, 2]}


@pytest.mark.parametrize(
    ("data", "cell"), [("mnist", "mlp"), ("mnist", "cnn"), ("mnist", "vanilla"), ("cifar10", "cnn")]
)
def test_a_phase_diagram_of_one_seed(data, cell):
    settings = phases.PHASES[data].plan(cell, "small") | TINY
    curves = phases.run(settings, 1, Place())
    assert curves["value"] == [0.5, 2.0]
    assert [len(row) for row in curves["rate"]] == [4, 4]
    assert curves["diverged_at"][1][0] is None
    assert curves["diverged_at"][1][-1] is not None
    assert math.isnan(curves["test_loss"][1][-1])
    eta_stars = phases.eta_stars(settings, 1, Place())
    assert eta_stars["value"] == curves["value"]
    for name in ("printed", "corrected", "measured"):
        assert eta_stars[name][0] > eta_stars[name][1] > 0


@pytest.mark.parametrize("cell", ["mlp", "cnn"])
def test_groups_of_a_phase_diagram_change_nothing(cell, monkeypatch):
    settings = phases.PHASES["mnist"].plan(cell, "small") | TINY
    whole = phases.run(settings, 0, Place())
    monkeypatch.setattr(phases, "GROUP", {"auto": 3, "always": 3})
    sizes = []
    train = Trainer.train

    def noted(trainer, cells, **rest):
        sizes.append(len(cells))
        return train(trainer, cells, **rest)

    monkeypatch.setattr(Trainer, "train", noted)
    found = phases.run(settings, 0, Place())
    assert found.keys() == whole.keys()
    # How many networks are multiplied at once decides how some machines round, and what explodes makes that larger.
    for name, curves in whole.items():
        ours, wanted = np.array(found[name], float), np.array(curves, float)
        exploded = wanted > 1e6
        np.testing.assert_allclose(ours[~exploded], wanted[~exploded], rtol=5e-6, err_msg=name)
        np.testing.assert_allclose(ours[exploded], wanted[exploded], rtol=1e-4, err_msg=name)
    assert sizes == [3, 3, 2]


def test_a_bisected_boundary_is_finer_than_its_grid():
    settings = scaling.SCALING.plan("momentum 0.5", "small") | TINY | {"bisect": 0.3}
    curves = scaling.run(settings, 0, Place())
    rates = np.log10(curves["rate"][1])
    assert np.diff(rates).min() <= 0.3 < np.diff(rates).max()
    assert set(curves) >= {"printed", "corrected", "measured", "diverged_at"}


def test_a_phase_diagram_ends_in_time():
    def tick(step):
        raise OutOfTime

    with pytest.raises(OutOfTime):
        phases.run(phases.PHASES["mnist"].plan("mlp", "small") | TINY, 0, Place(tick=tick))


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
def test_both_modes_and_training_beyond_the_top(data):
    tiny = {**TINY, "measured_at": [1], "batches": 2, "after": 2, "steps": 3}
    settings = mf_modes.MODES[data].plan("mlp", "small") | tiny
    curves = mf_modes.run(settings, 0, Place())
    eta_stars = phases.eta_stars(settings, 0, Place())
    # The theory's eta* is that of the mode with the larger lambda.
    tops = [min(pair) for pair in zip(curves["mean_mode"], curves["data_mode"], strict=True)]
    assert tops == pytest.approx(eta_stars["corrected"])
    assert curves["measured_at"] == [2.0]
    assert curves["measured"] == pytest.approx(eta_stars["measured"][1:], rel=0.02)
    assert curves["several"][0] > 0
    assert curves["left"][0] > 0
    assert curves["highest"][0] >= 1
    beyond = mf_modes.run(settings | {"beyond": 1e6, "after": 8, "steps": 9}, 0, Place())
    assert beyond["highest"] == [math.inf]
    assert math.isnan(beyond["left"][0])


def test_gamma_and_beta_trained_and_held():
    tiny = {**TINY, "measured_at": [0, 1], "steps": 3, "after": 2, "decades": 0.3}
    curves = mf_affine.run(mf_affine.AFFINE["mnist"].plan("cnn", "small") | tiny, 0, Place())
    assert curves["gamma"] == [0.5, 2.0]
    assert all(len(row) == 2 for row in curves.values())
    # Fewer parameters have less of the curvature; most so at the smaller gamma.
    assert curves["held_measured"][0] > 1.02 * curves["measured"][0]
    assert curves["held_predicted"][0] != curves["predicted"][0]
    for i in range(2):
        assert curves["measured"][i] / 4 <= curves["diverges"][i] <= 8 * curves["measured"][i]


def test_the_onset_lies_within_a_factor_of_two_of_eta_star():
    """A network this narrow may settle down again after a first growth; at width 1000 it is within 0.02 decades."""
    tiny = {"width": 400, "batch_size": 64, "gammas": [4.0], "steps": 20}
    curves = mf_onset.run(mf_onset.ONSET.plan("batch", "small") | tiny, 0, Place())
    assert 0.9 <= curves["rises"][0] / curves["measured"][0] <= 2
    assert curves["diverges"][0] >= curves["rises"][0]


def test_gradient_descent_on_a_parabola_rises_beyond_two_over_lambda():
    """L = w^2 / 2 with lambda = 1."""

    def network():
        layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(layer.weight)
        return layer

    batch = (torch.ones(1, 1), torch.zeros(1, 1))

    def loss(output, target):
        return (output - target).square().sum() / 2

    rises = goes_above(1.0, network, loss, [batch], steps=5, tick=lambda step: None)
    assert crossing(rises, 0.1, 30.0, 0.001) == pytest.approx(2.0, rel=0.002)
    # With momentum mu it diverges beyond 2 (1 + mu), which takes a hundred steps to show one percent above.
    heavy = goes_above(1e6, network, loss, [batch, batch], steps=400, tick=lambda step: None, momentum=0.5)
    assert crossing(heavy, 2.0, 30.0, 0.001) == pytest.approx(3.0, rel=0.01)
    gone = goes_above(1e6, network, loss, [batch], steps=5, tick=lambda step: None)
    # After n steps w = (1 - eta)^n: above 10^3 in four steps from 1 + 10^(3/4) on.
    assert crossing(gone, 0.1, 30.0, 0.001) == pytest.approx(1 + 10**0.75, rel=0.002)


@pytest.mark.slow
@pytest.mark.parametrize("cell", mf_fig_1.CELLS)
def test_lambda_over_gamma(cell):
    settings = mf_fig_1.LAMBDA.plan(cell, "small") | {"batch_size": 64, "gammas": [1.0, 2.0], "measured": [1.0]}
    curves = mf_fig_1.run(settings, 0, Place())
    assert curves["trained"][0] == pytest.approx(curves["measured"][0], rel=0.15)
    assert curves["frozen"][0] == pytest.approx(curves["measured frozen"][0], rel=0.15)
    assert curves["none"]["measured"] > curves["measured"][0]


@pytest.mark.parametrize("network", ["vgg16", "resnet18"])
def test_initial_gammas(network):
    settings = mf_fig_4.INITIAL.plan(f"{network}, gamma 0.5", "small") | {
        "width": 0.0625,
        "batch_size": 32,
        "epochs": 2,
    }
    curves = mf_fig_4.run(settings, 0, Place())
    assert len(curves["train_loss"]) == len(curves["test_accuracy"]) == 2
    assert all(map(math.isfinite, curves["train_loss"]))


@pytest.mark.parametrize("network", ["vgg11", pytest.param("resnet18", marks=pytest.mark.slow)])
def test_three_readings_of_the_curvature(network):
    settings = curvature_modes.MODES.plan(network, "small") | {"width": 0.0625, "batch_size": 32, "measured_at": [0, 2]}
    curves = curvature_modes.run(settings, 0, Place())
    assert curves["step"] == [0, 2]
    assert all(value > 0 for name in curvature_modes.STATISTICS for value in curves[name])
    assert curves["frozen"] != curves["batch"]


@pytest.mark.parametrize("norm", ["rms", "linf"])
def test_the_same_report_for_a_normalizer(norm):
    settings = every_norm.EVERY.plan(norm, "small") | {
        "width": 32,
        "batch_size": 64,
        "train": 4,
        "snapshot_every": 2,
        "steps": 10,
    }
    curves = every_norm.run(settings, 0, Place())
    assert math.isnan(curves["predicted"]) == (norm not in every_norm.KNOWN)
    assert curves["step"] == [0, 2]
    assert curves["rises"] > 0.2 * curves["measured"]


@pytest.mark.parametrize(
    "task",
    ["digits MLP, squared error, momentum", "MNIST CNN, cross-entropy, Adam", "CIFAR-10 CNN, squared error, momentum"],
)
def test_advisers_and_the_grid(task):
    data = advising.TASKS[task]["data"]
    settings = advising.ADVICE[data].plan(task, "small") | {
        "steps": 3,
        "spacing": 2.0,
        "channels": [4, 4, 4],
        "width": 16,
    }
    curves = advising.run(settings, 0, Place())
    assert len(curves["rate"]) == len(curves["test_accuracy"]) == 3
    assert math.isnan(curves["predict"]) == ("Adam" in task)
    assert curves["measure"] > 0
    assert curves["critical"] > 0


def test_the_range_test_finds_the_steepest_fall():
    """A loss that falls as a logistic curve around step 60 of 100; smoothing moves the steepest fall a few steps on."""
    rates = np.geomspace(1e-7, 10, 100)
    falls = [1 / (1 + math.exp((step - 60) / 2)) for step in range(100)]
    found = advising.range_test(lambda given: falls, rates)
    smooth, slopes = [falls[0]], []
    for loss in falls[1:]:
        smooth.append(0.05 * loss + 0.95 * smooth[-1])
    slopes = [(smooth[t + 1] - smooth[t - 1]) / 2 for t in range(11, 94)]
    assert found == rates[11 + slopes.index(min(slopes))]
    assert math.isnan(advising.range_test(lambda given: [1.0, math.inf], rates))
    # What comes after the smoothed loss is five times its least is not looked at.
    blown = [*falls[:75], *[1e3] * 25]
    assert advising.range_test(lambda given: blown, rates) == found


def test_regret_is_what_the_nearest_rate_of_the_grid_loses():
    task = "digits MLP, squared error, momentum"
    curves = {
        "rate": [0.01, 0.1, 1.0],
        "test_accuracy": [0.9, 0.97, math.nan],
        "predict": 0.2,
        "measure": 0.018,
        "critical": 40.0,
        "range": math.nan,
    }
    assert advice.regret(task, curves, "predict") == 0
    assert advice.regret(task, curves, "measure") == pytest.approx(7)
    # A rate at which training diverged is worth one class in ten.
    assert advice.regret(task, curves, "critical") == pytest.approx(87)
    assert math.isnan(advice.regret(task, curves, "range"))


def test_every_experiment_of_the_paper_is_one_command():
    """What a name needs is made by that name: cells of the entries, and no more than their experiments have."""
    for name in (
        "mf-affine",
        "mf-distances",
        "mf-fig-1",
        "mf-fig-3",
        "mf-fig-4",
        "mf-modes",
        "mf-onset",
        "mf-scaling",
        "advice",
        "every-norm",
        "curvature-modes",
    ):
        for experiment, cell in all_entries()[name].cells():
            assert all_experiments()[experiment.name].plan(cell, "paper")["experiment"] == experiment.name
