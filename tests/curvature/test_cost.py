"""Gradient passes of the default call, counted in operations; what further batches are given for theirs."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from normscope import data, losses, measure, models
from normscope.curvature import Solver

FIRST, FURTHER = 30, 4


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry:
            self.total += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=found)
        return found


def operations(run) -> int:
    with Operations() as counted:
        run()
    return counted.total


def digits(count: int):
    found = data.digits(seed=0)
    x, y = found.x_train.flatten(1).split(64), found.y_train.split(64)
    return list(zip(x, y, strict=True))[:count]


def images(count: int):
    x = torch.randn(count, 8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return [(part, torch.arange(8) % 10) for part in x]


NETWORKS = {
    "digits MLP": (lambda: models.MLP(64, 10, width=100, norm="batch"), digits),
    "no normalizer": (lambda: models.MLP(64, 10, width=100, norm="none"), digits),
    "CNN": (lambda: models.CNN(norm="batch"), images),
    "VGG-11, small": (lambda: models.VGG(11, norm="batch", width=0.125), images),
}


@pytest.mark.parametrize("loss_fn", [losses.cross_entropy, losses.half_mse])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_default_call_stays_below_thirty_gradients_and_four_for_each_further_batch(name, loss_fn):
    make, batches = NETWORKS[name]
    model, pairs = make(), batches(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    unit = operations(lambda: loss_fn(model(pairs[0][0]), pairs[0][1]).backward())
    for _ in range(2):
        one = operations(lambda: measure(model, loss_fn, pairs[0]))
        three = operations(lambda: measure(model, loss_fn, pairs))
        assert one / unit <= FIRST
        assert (three - one) / unit <= 2 * FURTHER
        for x, y in pairs:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()


def test_it_names_all_but_the_hessians_ends():
    model = models.MLP(64, 10, width=16, depth=3, norm="batch", seed=0)
    found = measure(model, losses.cross_entropy, digits(1)[0])
    assert found.lambda_max > 0
    assert found.eta_star > 0
    assert found.critical_rate > 0
    assert found.first_guess > 0
    assert found.hessian_max != found.hessian_max
    assert found.critical_rates == (found.critical_rate,)
    assert found.lambda_by_batch == (found.lambda_max,)


def test_a_search_that_runs_out_says_so_with_its_residual():
    x = torch.diag(torch.linspace(1, 1.5, 60, dtype=torch.float64).sqrt()) * 60**0.5
    model = nn.Linear(60, 1, bias=False).double()
    found = measure(model, losses.half_mse, (x, torch.zeros(60, 1, dtype=torch.float64)))
    assert not found.converged
    assert found.products == 17
    assert 1e-3 < found.residual < 0.1
    assert any("Not converged in 17 products: lambda_max. Its relative residual" in note for note in found.notes)
    exact = measure(model, losses.half_mse, (x, torch.zeros(60, 1, dtype=torch.float64)), solver=Solver(tol=1e-6))
    assert exact.converged
    assert exact.lambda_max == pytest.approx(1.5, rel=1e-6)


def test_further_batches_give_lower_bounds_and_their_own_critical_rates():
    model, pairs = models.MLP(64, 10, width=16, depth=3, norm="batch", seed=0), digits(4)
    found = measure(model, losses.cross_entropy, pairs)
    alone = [measure(model, losses.cross_entropy, pair, solver=Solver(tol=1e-4)) for pair in pairs]
    assert found.lambda_max == pytest.approx(alone[0].lambda_max, rel=1e-3)
    for least, critical, own in zip(found.lambda_by_batch, found.critical_rates, alone, strict=True):
        assert 0.2 * own.lambda_max < least <= own.lambda_max * (1 + 1e-3)
        assert critical == pytest.approx(own.critical_rate, rel=0.25)
    assert found.settings["over"] == "first"
    mean = measure(model, losses.cross_entropy, pairs, over="batches", solver=Solver(tol=1e-3))
    assert len(mean.critical_rates) == 1


def test_a_note_says_how_eta_star_varies_over_batches():
    def on_batches(found):
        return [note for note in found.notes if "eta* " in note and "batch" in note]

    pairs = digits(4)
    normalized = models.MLP(64, 10, width=16, depth=3, norm="batch", seed=0)
    found = measure(normalized, losses.cross_entropy, pairs)
    (note,) = on_batches(found)
    limits = sorted(found.factor / least for least in found.lambda_by_batch[1:])
    assert f"of the others it is at most {limits[0]:.2g} to {limits[-1]:.2g}." in note
    assert "over='batches'" in note
    (note,) = on_batches(measure(normalized, losses.cross_entropy, pairs[0]))
    assert note.startswith("eta* is of one batch")
    assert not on_batches(measure(normalized, losses.cross_entropy, pairs, over="batches"))
    plain = models.MLP(64, 10, width=16, depth=3, norm="none", seed=0)
    assert not on_batches(measure(plain, losses.cross_entropy, pairs[0]))
    x, y = pairs[0]
    (note,) = on_batches(measure(plain, losses.cross_entropy, [(x, y), (3 * x, y)]))
    assert "over='batches'" not in note


@pytest.mark.parametrize("kind", ["hessian", "ggn"])
def test_the_bounds_are_below_the_dense_eigenvalues(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    x, y = (torch.randn(24, n, dtype=torch.float64) for n in (5, 2))
    pairs = list(zip(x.split(8), y.split(8), strict=True))
    found = measure(model, losses.half_mse, pairs, matrix=kind, solver=Solver(tol=1e-8))
    for least, pair in zip(found.lambda_by_batch, pairs, strict=True):
        assert least <= measure(model, losses.half_mse, pair, matrix=kind, solver=Solver(tol=1e-9)).lambda_max * (
            1 + 1e-7
        )


def test_the_upper_end_of_a_hessian_is_relative_to_itself():
    """Beside a lower end of forty times its size."""
    x = torch.diag(torch.tensor([40.0, 1.0, 0.9, 0.5, 0.1], dtype=torch.float64)).sqrt() * 5**0.5
    model = nn.Linear(5, 1, bias=False).double()
    signs = torch.tensor([-1.0, 1, 1, 1, 1], dtype=torch.float64)

    def loss(f, y):
        return 0.5 * (signs * f.squeeze(1).square()).mean() + (f.squeeze(1) * y).mean()

    found = measure(model, loss, (x, torch.ones(5, dtype=torch.float64)), matrix="hessian", hessian=True)
    assert found.hessian_min == pytest.approx(-40, rel=2e-3)
    assert found.hessian_max == pytest.approx(1.0, rel=2e-3)
    assert found.hessian_residual <= 1e-3
