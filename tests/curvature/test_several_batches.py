"""Several batches: what their mean means, and what is refused."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from normscope import losses, measure, models
from normscope.curvature import Network, Solver
from normscope.isolation.lending import untouched

X = torch.randn(24, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randint(3, (24,), generator=torch.Generator().manual_seed(1))
BATCHES = list(zip(X.split(8), Y.split(8), strict=True))


def _net(norm: str = "batch") -> nn.Module:
    return models.MLP(5, 3, width=6, depth=3, norm=norm).double()


def _dense(model: nn.Module, batch, matrix: str, stats: str) -> torch.Tensor:
    with untouched(model) as lent:
        network = Network(lent, model, F.cross_entropy, batch, stats=stats)
        product = network.product(matrix)
        return torch.stack([product(row) for row in torch.eye(network.size, dtype=torch.float64)])


@pytest.mark.parametrize("matrix", ["ggn", "hessian", "fisher"])
@pytest.mark.parametrize("stats", ["batch", "frozen", "running"])
def test_the_operator_is_the_mean_of_the_batches_operators(matrix, stats):
    model = _net()
    model(X)
    mean = sum(_dense(model, batch, matrix, stats) for batch in BATCHES) / 3
    expected = float(torch.linalg.eigvalsh((mean + mean.T) / 2)[-1])
    found = measure(
        model, F.cross_entropy, BATCHES, matrix=matrix, stats=stats, solver=Solver(tol=1e-7), over="batches"
    )
    assert found.lambda_max == pytest.approx(expected, rel=1e-7)
    assert found.converged


def test_a_loader_is_read_once_and_a_pair_from_it_is_one_batch():
    loader = DataLoader(TensorDataset(X, Y), batch_size=8)
    model = _net()
    mean = {"over": "batches"}
    expected = measure(model, F.cross_entropy, BATCHES, **mean)
    assert measure(model, F.cross_entropy, loader, **mean).lambda_max == expected.lambda_max
    assert measure(model, F.cross_entropy, iter(BATCHES), **mean).lambda_max == expected.lambda_max
    one = next(iter(loader))
    assert isinstance(one, list)
    assert measure(model, F.cross_entropy, one).settings["samples"] == [8]
    assert expected.settings["samples"] == [8, 8, 8]
    assert expected.settings["over"] == "batches"


def test_a_few_batches_of_an_endless_iterator_are_read_and_said():
    model, stream = _net(), itertools.cycle(BATCHES)
    found = measure(model, F.cross_entropy, stream, hessian=False)
    assert found.settings["samples"] == [8] * 4
    assert any("4 batches of the cycle were read" in note and "used up" in note for note in found.notes)
    assert next(stream)[0] is BATCHES[1][0]
    assert measure(model, F.cross_entropy, BATCHES, n_batches=2, hessian=False).settings["samples"] == [8, 8]


@pytest.mark.parametrize("loss_fn", [F.cross_entropy, losses.half_sse])
@pytest.mark.parametrize(("norm", "stats"), [("batch", "running"), ("layer", "batch"), ("none", "batch")])
def test_parts_add_up_where_no_statistics_go_over_the_batch(loss_fn, norm, stats):
    model = _net(norm)
    whole = measure(model, loss_fn, (X, Y), stats=stats, solver=Solver(tol=1e-8), hessian=True)
    # Parts of 10, 10 and 4.
    parts = measure(model, loss_fn, (X, Y), stats=stats, solver=Solver(tol=1e-8), hessian=True, micro_batch=10)
    assert parts.lambda_max == pytest.approx(whole.lambda_max, rel=1e-8)
    assert parts.hessian_min == pytest.approx(whole.hessian_min, rel=1e-6)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-12)
    data = measure(model, loss_fn, BATCHES, stats=stats, solver=Solver(tol=1e-8), over="data")
    assert data.lambda_max == pytest.approx(whole.lambda_max, rel=1e-8)


def test_parts_with_batch_statistics_are_refused_with_the_reason():
    model = _net()
    for stats in ("batch", "frozen"):
        with pytest.raises(ValueError, match="statistics over the batch.*stats='running'"):
            measure(model, F.cross_entropy, (X, Y), stats=stats, micro_batch=8)
        with pytest.raises(ValueError, match="not the sum of its parts.*over='batches'"):
            measure(model, F.cross_entropy, BATCHES, stats=stats, over="data", matrix="hessian")
    with pytest.raises(ValueError, match="not the sum of its parts"):
        measure(model, F.cross_entropy, BATCHES, stats="running", over="data", compare=["batch"])


def test_mistakes_are_named():
    model = _net()
    with pytest.raises(ValueError, match="no batch"):
        measure(model, F.cross_entropy, [])
    with pytest.raises(ValueError, match="more than 1000 batches"):
        measure(model, F.cross_entropy, [(X, Y)] * 1001)
    with pytest.raises(ValueError, match="n_batches= counts the batches"):
        measure(model, F.cross_entropy, BATCHES, n_batches=0)
    with pytest.raises(ValueError, match="pair"):
        measure(model, F.cross_entropy, X)
    with pytest.raises(ValueError, match="iterable of .x, y., mappings or others; got int"):
        measure(model, F.cross_entropy, 3)
    with pytest.raises(ValueError, match="holds tensors.*got a tuple of 2"):
        measure(model, F.cross_entropy, [(1, 2), (3, 4)])
    with pytest.raises(ValueError, match="needs a batch"):
        measure(model, F.cross_entropy)
    with pytest.raises(ValueError, match="has its batches already"):
        measure(model, F.cross_entropy, BATCHES, micro_batch=2)
    with pytest.raises(ValueError, match="Did you mean 'batches'"):
        measure(model, F.cross_entropy, BATCHES, over="batch")
    with pytest.raises(ValueError, match="neither a mean nor a sum"):
        measure(model, lambda o, y: F.cross_entropy(o, y) ** 2, BATCHES, stats="running", over="data")
    uneven = [(X[:8], Y[:8]), (X[8:12], Y[8:12])]
    assert any("differ in size" in note for note in measure(model, F.cross_entropy, uneven, over="batches").notes)
