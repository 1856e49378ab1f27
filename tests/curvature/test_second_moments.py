"""Optimizers that have made no step: their second moments are gathered, and nothing of theirs moves."""

import pytest
import torch
from torch import nn

from normscope import losses, measure
from normscope.curvature import Solver

X = torch.randn(24, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randn(24, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
BATCHES = list(zip(X.split(8), Y.split(8), strict=True))
KINDS = {
    "adam": (torch.optim.Adam, {}),
    "adam, foreach": (torch.optim.Adam, {"foreach": True}),
    "adam, fused": (torch.optim.Adam, {"fused": True}),
    "adam, amsgrad": (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "adamw, fused": (torch.optim.AdamW, {"fused": True}),
    "nadam": (torch.optim.NAdam, {}),
    "nadam, foreach": (torch.optim.NAdam, {"foreach": True, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"initial_accumulator_value": 0.1}),
    "adagrad, fused": (torch.optim.Adagrad, {"fused": True}),
    "rmsprop": (torch.optim.RMSprop, {"weight_decay": 0.1}),
    "rmsprop, foreach": (torch.optim.RMSprop, {"foreach": True}),
}


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def _stepped(kind, options, model):
    """After one step of length zero, with what a running average starts from taken out."""
    optimizer = kind(model.parameters(), lr=0.0, **options)
    losses.half_mse(model(X), Y).backward()
    optimizer.step()
    for state in optimizer.state.values():
        if "square_avg" in state:
            state["square_avg"] /= 1 - optimizer.param_groups[0]["alpha"]
    return optimizer


@pytest.mark.parametrize("name", [name for name in KINDS if "nadam" not in name])
def test_of_one_batch_they_are_those_after_a_step_of_length_zero(name):
    kind, options = KINDS[name]
    model = _net()
    expected = measure(
        model, losses.half_mse, (X, Y), optimizer=_stepped(kind, options, model), solver=Solver(tol=1e-8)
    )
    fresh = kind(model.parameters(), lr=0.1, **options)
    found = measure(model, losses.half_mse, (X, Y), optimizer=fresh, solver=Solver(tol=1e-8))
    assert found.lambda_max == pytest.approx(expected.lambda_max, rel=1e-7)
    assert found.eta_star == pytest.approx(expected.eta_star, rel=1e-7)


def test_a_nadam_divides_as_an_adam_does_and_steps_by_its_first_shares():
    model = _net()
    adam = measure(model, losses.half_mse, (X, Y), optimizer=torch.optim.Adam(model.parameters()))
    nadam = measure(model, losses.half_mse, (X, Y), optimizer=torch.optim.NAdam(model.parameters()))
    assert nadam.lambda_max == pytest.approx(adam.lambda_max, rel=1e-9)
    # beta_1 = 0.9, of which the first steps take half.
    assert nadam.factor == pytest.approx(2 / (0.55 + 0.45 / 19), rel=1e-2)


@pytest.mark.parametrize("name", KINDS)
def test_the_optimizer_stays_fresh_and_the_result_says_so(name):
    kind, options = KINDS[name]
    model = _net()
    fresh = kind(model.parameters(), lr=0.1, **options)
    before = {key: {k: v.clone() for k, v in state.items()} for key, state in fresh.state.items()}
    grads = [p.grad for p in model.parameters()]
    found = measure(model, losses.half_mse, (X, Y), optimizer=fresh)
    assert found.preconditioned
    assert found.lambda_max > 0
    assert found.settings["moments_of_batches"] == 1
    assert any("has made no step" in note and "of one batch" in note for note in found.notes)
    assert set(fresh.state) == set(before)
    assert all(torch.equal(fresh.state[p][k], v) for p, state in before.items() for k, v in state.items())
    assert [p.grad for p in model.parameters()] == grads


@pytest.mark.parametrize("over", ["first", "batches"])
def test_of_several_batches_they_are_the_mean_square(over):
    model = _net()
    squares = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in BATCHES:
        for square, slope in zip(
            squares, torch.autograd.grad(losses.half_mse(model(x), y), model.parameters()), strict=True
        ):
            square += slope.square() / 3
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    found = measure(model, losses.half_mse, BATCHES, optimizer=optimizer, solver=Solver(tol=1e-8), over=over)
    for p, square in zip(model.parameters(), squares, strict=True):
        optimizer.state[p] = {"step": torch.tensor(1.0), "exp_avg": 0 * square, "exp_avg_sq": square * (1 - 0.999)}
    expected = measure(model, losses.half_mse, BATCHES, optimizer=optimizer, solver=Solver(tol=1e-8), over=over)
    assert found.lambda_max == pytest.approx(expected.lambda_max, rel=1e-6)
    assert found.settings["moments_of_batches"] == 3


def test_with_adapters_on_a_frozen_base():
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(5, 3, dtype=torch.float64).requires_grad_(False)
            self.down = nn.Linear(5, 2, bias=False, dtype=torch.float64)
            self.up = nn.Linear(2, 3, bias=False, dtype=torch.float64)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    torch.manual_seed(0)
    model = Adapted()
    nn.init.zeros_(model.up.weight)
    for parameters in (model.parameters(), [p for p in model.parameters() if p.requires_grad]):
        found = measure(model, losses.half_mse, (X, Y), optimizer=torch.optim.AdamW(parameters))
        assert found.converged
        assert found.first_guess > 0
        # The adapter that starts at zero gives the other no gradient.
        assert any("does not move down.weight" in note for note in found.notes)


def test_parameters_in_another_form_are_refused_by_name_unless_frozen():
    from torch.testing._internal.two_tensor import TwoTensor

    model = _net()
    held = TwoTensor(model[0].weight.detach(), model[0].weight.detach().clone())
    model[0].weight = nn.Parameter(held)
    with pytest.raises(ValueError, match="0.weight is a TwoTensor.*Freeze it"):
        measure(model, losses.half_mse, (X, Y))


def test_frozen_integers_beside_adapters_are_left_alone():
    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randint(-8, 8, (3, 5), dtype=torch.int8), requires_grad=False)
            self.adapter = nn.Linear(5, 3)

        def forward(self, x):
            return x @ (self.weight.to(x.dtype) / 8).T + self.adapter(x)

    torch.manual_seed(0)
    model = Quantized()
    weight, before = model.weight, model.weight.clone()
    found = measure(model, losses.half_mse, (X.float(), Y.float()), optimizer=torch.optim.AdamW(model.parameters()))
    assert found.converged
    assert model.weight is weight
    assert torch.equal(weight, before)
