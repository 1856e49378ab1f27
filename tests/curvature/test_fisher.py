"""The Fisher matrix against its definition, E_{y ~ p(y|x)} grad log p grad log p^T, term by term."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope import losses, measure
from normscope.curvature import Network
from normscope.isolation.lending import untouched

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.tensor([0, 2, 1, 1, 0])


def _net(last: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)]
    return nn.Sequential(*layers, *([last] if last else [])).double()


def _score_moment(model: nn.Module, sample: int, slope: Tensor) -> Tensor:
    """grad grad^T of slope^T f_sample(theta), the derivative taken through the batch statistics."""
    output = model(X)[sample]
    grads = torch.autograd.grad(output, list(model.parameters()), slope)
    g = torch.cat([g.reshape(-1) for g in grads])
    return torch.outer(g, g)


def _by_definition(model: nn.Module) -> Tensor:
    """Sum over samples and labels of p(label) grad log p grad log p^T, a mean over samples."""
    p = model(X).detach().softmax(1)
    total = 0.0
    for n in range(len(X)):
        for label in range(3):
            slope = p[n] - F.one_hot(torch.tensor(label), 3)
            total = total + p[n, label] * _score_moment(model, n, slope) / len(X)
    return total


def _dense(model: nn.Module, loss_fn, target: Tensor, matrix: str, **options) -> Tensor:
    with untouched(model) as lent:
        network = Network(lent, model, loss_fn, (X, target), stats="batch", **options)
        product = network.product(matrix)
        return torch.stack([product(row) for row in torch.eye(network.size, dtype=torch.float64)])


def test_cross_entropy_is_exact_and_the_gauss_newton_matrix():
    model = _net()
    expected = _by_definition(model)
    for matrix in ("fisher", "ggn"):
        torch.testing.assert_close(_dense(model, F.cross_entropy, LABELS, matrix), expected, rtol=1e-10, atol=1e-12)


def test_nll_of_log_probabilities_has_the_same_one_and_no_gauss_newton_matrix():
    model = _net(nn.LogSoftmax(1))
    expected = _by_definition(_net())
    torch.testing.assert_close(_dense(model, F.nll_loss, LABELS, "fisher"), expected, rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match="linear in the outputs.*matrix='fisher'"):
        measure(model, F.nll_loss, (X, LABELS))


def test_squared_error_is_exact_by_its_normal_distribution():
    """E[s s^T] = 1 for y ~ N(f, 1) and -log p = 1/2 (f - y)^2."""
    model = _net()
    expected = sum(
        _score_moment(model, n, unit) / len(X) for n in range(len(X)) for unit in torch.eye(3, dtype=torch.float64)
    )
    target = torch.zeros(5, 3, dtype=torch.float64)
    for matrix in ("fisher", "ggn"):
        torch.testing.assert_close(_dense(model, losses.half_mse, target, matrix), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("loss_fn", "target"),
    [
        (F.cross_entropy, LABELS),
        (nn.CrossEntropyLoss(reduction="sum"), LABELS),
        (nn.CrossEntropyLoss(ignore_index=1), LABELS),
        (losses.half_mse, torch.zeros(5, 3, dtype=torch.float64)),
        (losses.half_sse, torch.zeros(5, 3, dtype=torch.float64)),
        (nn.MSELoss(), torch.zeros(5, 3, dtype=torch.float64)),
        (nn.BCEWithLogitsLoss(), torch.zeros(5, 3, dtype=torch.float64)),
        (F.nll_loss, LABELS),
    ],
    ids=["entropy", "entropy-sum", "entropy-ignore", "half_mse", "half_sse", "mse", "binary", "nll"],
)
def test_sampled_is_within_five_standard_errors(loss_fn, target):
    """Quadratic forms at 10 directions; five standard errors: a false alarm in 1 of 10^5."""
    model = _net(nn.LogSoftmax(1) if loss_fn is F.nll_loss else None)
    exact = _dense(model, loss_fn, target, "fisher")
    with untouched(model) as lent:
        network = Network(lent, model, loss_fn, (X, target), stats="batch", label_draws=4000, seed=3)
        product = network.product("fisher")
        for v in torch.randn(10, network.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64):
            error = network.fisher_error(v)
            assert 0 < error < 0.1 * float(v @ exact @ v)
            assert abs(float(v @ product(v) - v @ exact @ v)) < 5 * error


def test_the_standard_error_is_the_same_before_and_after_a_product():
    model = _net()
    with untouched(model) as lent:
        network = Network(lent, model, F.cross_entropy, (X, LABELS), stats="batch", label_draws=50, seed=3)
        v = torch.randn(network.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        before = network.fisher_error(v)
        network.product("fisher")(v)
        network.product("ggn")(v)
        assert before == network.fisher_error(v) > 0


def test_measure_gives_the_standard_error_and_is_seeded():
    model = _net()
    exact = measure(model, F.cross_entropy, (X, LABELS), matrix="fisher", hessian=False)
    found = [
        measure(model, F.cross_entropy, (X, LABELS), matrix="fisher", label_draws=400, seed=s, hessian=False)
        for s in (0, 0, 1)
    ]
    assert exact.stderr == 0
    assert found[0].lambda_max == found[1].lambda_max != found[2].lambda_max
    assert found[0].stderr > 0
    assert abs(found[0].lambda_max - exact.lambda_max) < 6 * found[0].stderr
    assert math.isnan(
        measure(model, F.cross_entropy, (X, LABELS), matrix="fisher", label_draws=1, hessian=False).stderr
    )


def test_other_losses_say_that_they_go_through_their_own_second_derivative():
    def huber(output: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(output, target)

    model, target = _net(), torch.zeros(5, 3, dtype=torch.float64)
    found = measure(model, huber, (X, target), matrix="fisher", hessian=False)
    assert any("generalized Gauss-Newton" in note for note in found.notes)
    assert found.lambda_max == pytest.approx(measure(model, huber, (X, target), hessian=False).lambda_max)
    with pytest.raises(ValueError, match="distribution to draw from"):
        measure(model, huber, (X, target), matrix="fisher", label_draws=8)
    with pytest.raises(ValueError, match="label_draws"):
        measure(model, F.cross_entropy, (X, LABELS), label_draws=8)
