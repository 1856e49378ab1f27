"""Inputs far from zero in float32: what a look in float64 finds and mends."""

import copy

import pytest
import torch
from torch import nn

from normscope import losses, measure
from normscope.curvature import Solver
from normscope.curvature.eigensolvers import solver
from normscope.curvature.eigensolvers.solver import fresh_start
from normscope.curvature.measurement.narrow_draws import NarrowDraws

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randn(64, 2, generator=torch.Generator().manual_seed(2))
# Notes that every measurement of one small batch has.
ON_THE_BATCH = ("eta* is of one batch", "All evidence for the learning rate")


def net(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), *more, nn.Linear(8, 2))


def exact(model: nn.Module, x, y, **options):
    return measure(
        copy.deepcopy(model).double(), losses.half_mse, (x.double(), y.double()), solver=Solver(tol=1e-6), **options
    )


def constant(x):
    x = x.clone()
    x[:, 0] = 1e4
    return x


def pressure(x):
    x = x.clone()
    x[:, 0] = 101325 + 10 * x[:, 0]
    return x


FAR = {"offset": lambda x: x + 1e4, "constant": constant, "pressure": pressure}


@pytest.mark.parametrize("n", [64, 2])
@pytest.mark.parametrize("name", FAR)
def test_far_inputs_are_searched_in_float64_and_said(name, n):
    x, y = FAR[name](X[:n]), Y[:n]
    found = measure(net(), losses.half_mse, (x, y), hessian=True)
    expected = exact(net(), x, y, hessian=True)
    assert found.converged
    assert found.lambda_max == pytest.approx(expected.lambda_max, rel=1e-3)
    assert found.hessian_max == pytest.approx(expected.hessian_max, rel=2e-3)
    assert found.settings["dtype"] == "float64"
    said = next(note for note in found.notes if "In float32 lambda_max came out as" in note)
    assert "standardize them" in said
    assert "standard deviations" in said or "constant features" in said
    assert found.critical_rate > 0


def test_a_value_a_little_off_is_corrected_without_a_new_search():
    """Rounding differs between processors: at least one of several means is off by so little."""
    near = measure(net(), losses.half_mse, (X, Y), solver=Solver(tol=1e-4))
    corrected = 0
    for mean in (400, 500, 600, 700):
        found = measure(net(), losses.half_mse, (X + mean, Y), solver=Solver(tol=1e-4))
        expected = exact(net(), X + mean, Y)
        assert found.lambda_max == pytest.approx(expected.lambda_max, rel=max(found.residual, 1e-4))
        assert found.converged == (found.residual <= 1e-4)
        noted = any("In float32 lambda_max" in note for note in found.notes)
        corrected += noted and found.products <= near.products + 1
    assert corrected


@pytest.mark.parametrize("x", [X, X + 100, (100 * X.abs()).clamp(0, 255)])
def test_inputs_that_float32_resolves_are_searched_in_it(x):
    found = measure(net(), losses.half_mse, (x, Y), hessian=True)
    assert found.settings["dtype"] == "float32"
    assert all(note.startswith(ON_THE_BATCH) for note in found.notes)
    assert found.lambda_max == pytest.approx(exact(net(), x, Y).lambda_max, rel=1e-3)


def test_layers_and_statistics_are_looked_at_too():
    options = {"compare": ("frozen",), "layers": True}
    found = measure(net(), losses.half_mse, (X + 1e4, Y), **options)
    expected = exact(net(), X + 1e4, Y, **options)
    assert found.by_layer == pytest.approx(expected.by_layer, rel=2e-3)
    assert found.by_statistics == pytest.approx(expected.by_statistics, rel=2e-3)


def test_with_dropout_the_look_has_the_same_mask():
    torch.manual_seed(3)
    near = measure(net(nn.Dropout(0.5)), losses.half_mse, (X, Y))
    assert not any("float64" in note for note in near.notes)
    torch.manual_seed(3)
    far = measure(net(nn.Dropout(0.5)), losses.half_mse, (X + 1e4, Y))
    assert far.lambda_max == pytest.approx(near.lambda_max, rel=0.05)
    assert any("In float32" in note for note in far.notes)


@pytest.mark.parametrize(
    "draw",
    [
        torch.randn_like,
        torch.rand_like,
        lambda x: torch.empty_like(x).normal_(),
        lambda x: torch.bernoulli(torch.full_like(x, 0.3)),
        lambda x: nn.functional.dropout(torch.ones_like(x), 0.25),
        lambda x: nn.functional.rrelu(-torch.ones_like(x), training=True),
    ],
)
def test_float64_draws_as_float32_does(draw):
    torch.manual_seed(0)
    expected = draw(torch.zeros(99))
    torch.manual_seed(0)
    with NarrowDraws():
        found = draw(torch.zeros(99, dtype=torch.float64))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), expected)


def test_a_model_that_takes_no_float64_is_measured_and_it_is_said():
    class Single(nn.Module):
        def forward(self, x):
            if x.dtype != torch.float32:
                raise TypeError("float32 alone")
            return x

    found = measure(net(Single()), losses.half_mse, (X, Y))
    assert found.converged
    others = [note for note in found.notes if not note.startswith(ON_THE_BATCH)]
    assert others == ["Not checked in float64: lambda_max (float32 alone)."]


def test_the_repeated_search_starts_from_the_users_seed(monkeypatch):
    """Every start vector is drawn with the user's seed, those of the searches made again in float64 too."""
    drawn = []

    def recorded(gradient, block, seed):
        drawn.append((gradient.dtype, seed))
        return fresh_start(gradient, block, seed)

    monkeypatch.setattr(solver, "fresh_start", recorded)
    measure(net(), losses.half_mse, (X + 1e4, Y), seed=7)
    assert set(drawn) == {(torch.float32, 7), (torch.float64, 7)}
