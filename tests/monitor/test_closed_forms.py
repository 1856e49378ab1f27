"""Quadratics, logistic regression, linear networks: every measurement equals its formula, in float64.

Where nothing is said, 1e-12: the formula and the library each round some tens of times. Losses are compared as they
are; a rise L(theta + s d) - L(theta) loses the digits that the losses share, hence 1e-10 for critical steps.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from normscope.losses import half_sse
from normscope.monitor import (
    ActivationProbe,
    CriticalProbe,
    HealthProbe,
    LandscapeProbe,
    Monitor,
    Record,
    ShiftProbe,
)

TIGHT = {"rtol": 1e-12, "atol": 1e-13}
FACTORS = (0.01, 0.5, 1.0, 2.0, 4.0, 30.0)


class Quadratic(nn.Module):
    """L(w) = w'Hw/2 - b'w."""

    def __init__(self, h: np.ndarray, b: np.ndarray, w: np.ndarray) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w))
        self.register_buffer("h", torch.tensor(h))
        self.register_buffer("b", torch.tensor(b))

    def forward(self) -> Tensor:
        return self.w @ (self.h @ self.w) / 2 - self.b @ self.w


def _quadratic(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """H, b, and a w whose gradient has no favourite among the eigenvectors."""
    rng = np.random.default_rng(seed)
    q, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    h, b = q @ np.diag([0.1, 0.5, 1.0, 3.0, 20.0]) @ q.T, rng.normal(size=5)
    return h, b, np.linalg.solve(h, b + rng.normal(size=5))


def _look(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, *measure: object, lr: float | None = None
) -> Record:
    monitor = Monitor(model, forward=lambda model, _: model(), every=1, measure=measure, budget=None, on_error="raise")
    record = monitor.step(torch.zeros(()), optimizer=optimizer, lr=lr)
    assert record is not None
    return record


def _loss(h: np.ndarray, b: np.ndarray, w: np.ndarray) -> float:
    return float(w @ h @ w / 2 - b @ w)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lr", [1e-4, 0.03, 0.2])
def test_landscape_of_a_quadratic(seed: int, lr: float) -> None:
    h, b, w = _quadratic(seed)
    g = h @ w - b
    model = Quadratic(h, b, w)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model().backward()
    found = _look(model, optimizer, LandscapeProbe(FACTORS)).results["landscape"]
    hg, norm = np.linalg.norm(h @ g), np.linalg.norm(g)
    np.testing.assert_allclose(found.loss, _loss(h, b, w), **TIGHT)
    np.testing.assert_allclose(found.losses, [_loss(h, b, w - c * lr * g) for c in FACTORS], **TIGHT)
    np.testing.assert_allclose(found.grad_norm, norm, **TIGHT)
    # At c lr = 1e-6 the two gradients share six digits, which their difference loses.
    np.testing.assert_allclose(found.changes, [c * lr * hg for c in FACTORS], rtol=1e-12, atol=1e-14 * hg)
    there = [g - c * lr * h @ g for c in FACTORS]
    np.testing.assert_allclose(found.cosines, [g @ t / (norm * np.linalg.norm(t)) for t in there], **TIGHT)
    np.testing.assert_allclose(found.betas, [hg / norm] * len(FACTORS), rtol=1e-8)
    np.testing.assert_allclose(found.betas[-1], hg / norm, rtol=1e-10)
    assert found.beta == max(found.betas)
    assert found.beta_limit == pytest.approx(2 / lr, rel=1e-14)
    assert found.band == (min(found.losses), max(found.losses))
    assert found.lr == lr


def test_a_rate_without_an_optimizer() -> None:
    h, b, w = _quadratic(0)
    g = h @ w - b
    model = Quadratic(h, b, w)
    found = _look(model, None, LandscapeProbe((1.0,)), lr=0.05).results["landscape"]
    np.testing.assert_allclose(found.losses, [_loss(h, b, w - 0.05 * g)], **TIGHT)


def test_each_group_moves_at_its_own_rate() -> None:
    h, b, w = _quadratic(1)

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.u, self.v = nn.Parameter(torch.tensor(w[:2])), nn.Parameter(torch.tensor(w[2:]))

        def forward(self) -> Tensor:
            x = torch.cat([self.u, self.v])
            return x @ torch.tensor(h) @ x / 2 - torch.tensor(b) @ x

    model = Split()
    optimizer = torch.optim.SGD([{"params": [model.u], "lr": 0.1}, {"params": [model.v], "lr": 0.01}])
    model().backward()
    rate = np.array([0.1, 0.1, 0.01, 0.01, 0.01])
    g = h @ w - b
    d = -rate * g
    record = _look(model, optimizer, LandscapeProbe((0.5, 2.0)), CriticalProbe("gradient"))
    found = record.results["landscape"]
    np.testing.assert_allclose(found.losses, [_loss(h, b, w + c * d) for c in (0.5, 2.0)], **TIGHT)
    np.testing.assert_allclose(found.changes, [c * np.linalg.norm(h @ d) for c in (0.5, 2.0)], **TIGHT)
    np.testing.assert_allclose(found.beta, np.linalg.norm(h @ d) / np.linalg.norm(d), **TIGHT)
    np.testing.assert_allclose(found.lr, np.linalg.norm(d) / np.linalg.norm(g), **TIGHT)
    np.testing.assert_allclose(record.results["critical"].step, -2 * g @ d / (d @ h @ d), rtol=1e-10)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lr", [1e-3, 0.02, 0.1, 0.9])
def test_critical_step_along_the_gradient(seed: int, lr: float) -> None:
    h, b, w = _quadratic(seed)
    g = h @ w - b
    model = Quadratic(h, b, w)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model().backward()
    for update in ("gradient", "optimizer"):
        found = _look(model, optimizer, CriticalProbe(update)).results["critical"]
        eta = 2 * (g @ g) / (g @ h @ g)
        np.testing.assert_allclose([found.step, found.eta], [eta / lr, eta], rtol=1e-10)
        assert found.low <= found.step <= found.high
        assert found.passes <= 8
        # The curvature along g is not the largest one.
        assert found.eta > 1.05 * 2 / np.linalg.eigvalsh(h)[-1]


def test_along_the_top_eigenvector_it_is_two_over_the_eigenvalue() -> None:
    h, b, _ = _quadratic(0)
    values, vectors = np.linalg.eigh(h)
    model = Quadratic(h, b, np.linalg.solve(h, b) + vectors[:, -1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = _look(model, optimizer, CriticalProbe("gradient")).results["critical"]
    np.testing.assert_allclose(found.eta, 2 / values[-1], rtol=1e-10)


def _momentum(grads: list[np.ndarray], lr: float) -> np.ndarray:
    v = np.zeros(5)
    for g in grads:
        v = 0.9 * v + g
    return -lr * v


def _adam(grads: list[np.ndarray], lr: float) -> np.ndarray:
    m, v = np.zeros(5), np.zeros(5)
    for g in grads:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    t = len(grads)
    return -lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)


@pytest.mark.parametrize(
    ("make", "direction"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.004, momentum=0.9), lambda grads: _momentum(grads, 0.004)),
        (lambda p: torch.optim.Adam(p, lr=0.01), lambda grads: _adam(grads, 0.01)),
    ],
    ids=["momentum", "adam"],
)
@pytest.mark.parametrize("steps", [0, 3])
def test_critical_step_along_the_update(
    make: Callable[..., torch.optim.Optimizer], direction: Callable[[list[np.ndarray]], np.ndarray], steps: int
) -> None:
    h, b, w = _quadratic(2)
    model = Quadratic(h, b, w)
    optimizer = make(model.parameters())
    grads = []
    for at in range(steps + 1):
        optimizer.zero_grad()
        model().backward()
        grads.append(h @ model.w.detach().numpy() - b)
        if at < steps:
            optimizer.step()
    d = direction(grads)
    found = _look(model, optimizer, CriticalProbe("optimizer")).results["critical"]
    np.testing.assert_allclose(found.step, -2 * (grads[-1] @ d) / (d @ h @ d), rtol=1e-10)


def test_an_update_that_climbs_has_no_critical_step() -> None:
    h, b, w = _quadratic(0)
    model = Quadratic(h, b, w)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, maximize=True)
    model().backward()
    assert _look(model, optimizer, CriticalProbe("optimizer")).results["critical"].step == 0


def test_a_loss_that_only_falls_has_an_infinite_one() -> None:
    model = Quadratic(np.zeros((2, 2)), np.ones(2), np.zeros(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model().backward()
    found = _look(model, optimizer, CriticalProbe("gradient")).results["critical"]
    assert found.step == found.high == math.inf
    assert found.low > 1


def _logistic() -> tuple[np.ndarray, np.ndarray, nn.Linear]:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(20, 3))
    y = (x @ np.array([1.0, -2.0, 0.5]) + rng.normal(size=20) > 0).astype(np.float64)
    torch.manual_seed(0)
    return x, y, nn.Linear(3, 1).double()


def test_logistic_regression() -> None:
    x, y, model = _logistic()
    ones = np.column_stack([x, np.ones(20)])
    w = np.append(model.weight.detach().numpy(), model.bias.detach().numpy())

    def loss(w: np.ndarray) -> float:
        return float(np.mean(np.logaddexp(0, ones @ w) - y * (ones @ w)))

    def gradient(w: np.ndarray) -> np.ndarray:
        return ones.T @ (1 / (1 + np.exp(-ones @ w)) - y) / 20

    lr = 2.0
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    bce = nn.BCEWithLogitsLoss()
    monitor = Monitor(
        model,
        lambda out, y: bce(out[:, 0], y),
        every=1,
        measure=[LandscapeProbe(FACTORS), CriticalProbe("gradient")],
        budget=None,
        on_error="raise",
    )
    record = monitor.step(torch.tensor(x), torch.tensor(y), optimizer)
    assert record is not None
    found, critical = record.results["landscape"], record.results["critical"]
    g = gradient(w)
    there = [gradient(w - c * lr * g) for c in FACTORS]
    np.testing.assert_allclose(found.loss, loss(w), **TIGHT)
    np.testing.assert_allclose(found.losses, [loss(w - c * lr * g) for c in FACTORS], **TIGHT)
    changes = [np.linalg.norm(t - g) for t in there]
    np.testing.assert_allclose(found.changes, changes, rtol=1e-11)
    np.testing.assert_allclose(found.cosines, [g @ t / np.linalg.norm(g) / np.linalg.norm(t) for t in there], **TIGHT)
    beta = max(change / (c * lr * np.linalg.norm(g)) for change, c in zip(changes, FACTORS, strict=True))
    np.testing.assert_allclose(found.beta, beta, rtol=1e-11)
    # The loss is convex: one crossing, which the search has in its bracket and nears within eight passes.
    crossing = brentq(lambda s: loss(w - s * lr * g) - loss(w), 1e-3, 1e3, xtol=1e-13)
    assert critical.low <= crossing <= critical.high
    assert critical.step == pytest.approx(crossing, rel=1e-2)


def test_shift_of_two_numbers_by_hand() -> None:
    # f = w2 w1 x, x = y = 1, w1 = 2, w2 = 3: error 5, G1 = 5 * 3, G2 = 5 * 2. At lr 0.1 w1' = 0.5, error 0.5,
    # G2' = 0.5 * 0.5.
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        model[0].weight.fill_(2.0)
        model[1].weight.fill_(3.0)
    one = torch.ones(1, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    half_sse(model(one), one).backward()
    for update in ("gradient", "optimizer"):
        monitor = Monitor(model, half_sse, every=1, measure=[ShiftProbe(update)], budget=None, on_error="raise")
        record = monitor.step(one, one, optimizer)
        assert record is not None
        found = record.results["shift"]
        assert found.layers == ("0", "1")
        np.testing.assert_allclose(found.shifts, [0.0, 9.75], **TIGHT)
        np.testing.assert_allclose(found.cosines, [1.0, 1.0], **TIGHT)
        np.testing.assert_allclose(found.grad_norms, [15.0, 10.0], **TIGHT)


def test_shift_of_a_linear_network_with_biases() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    lr = 0.01
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    monitor = Monitor(model, half_sse, every=1, measure=[ShiftProbe("gradient")], budget=None, on_error="raise")
    record = monitor.step(x, y, optimizer)
    assert record is not None
    found = record.results["shift"]
    w1, b1, w2, b2 = (p.detach().numpy() for p in model.parameters())
    a, t = x.numpy(), y.numpy()

    def second(w1: np.ndarray, b1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient of W2 and the error, at this first layer."""
        hidden = a @ w1.T + b1
        error = hidden @ w2.T + b2 - t
        return error.T @ hidden, error

    before, error = second(w1, b1)
    back = error @ w2
    after, _ = second(w1 - lr * back.T @ a, b1 - lr * back.sum(0))
    np.testing.assert_allclose(found.shifts, [0.0, np.linalg.norm(after - before)], **TIGHT)
    cosine = (after * before).sum() / np.linalg.norm(after) / np.linalg.norm(before)
    np.testing.assert_allclose(found.cosines, [1.0, cosine], **TIGHT)
    np.testing.assert_allclose(found.grad_norms, [np.linalg.norm(back.T @ a), np.linalg.norm(before)], **TIGHT)
    # Without the bias the number is another one: the test would see it forgotten.
    without, _ = second(w1 - lr * back.T @ a, b1)
    assert abs(np.linalg.norm(without - before) / found.shifts[1] - 1) > 1e-3


def _gaussian(n: int, mean: np.ndarray, cov: np.ndarray, seed: int) -> np.ndarray:
    """Gaussian points shifted and mixed so that their sample mean and (biased) covariance are these exactly."""
    z = np.random.default_rng(seed).normal(size=(n, len(mean)))
    z -= z.mean(0)
    z @= np.linalg.inv(np.linalg.cholesky(z.T @ z / n)).T
    return mean + z @ np.linalg.cholesky(cov).T


def test_moments_of_a_linear_layer_on_gaussian_data() -> None:
    mean, cov = np.array([1.0, -2.0]), np.array([[2.0, 0.6], [0.6, 1.0]])
    x = torch.tensor(_gaussian(50, mean, cov, 0))
    torch.manual_seed(2)
    model = nn.Linear(2, 3).double()
    y = torch.zeros(50, 3, dtype=torch.float64)
    monitor = Monitor(model, half_sse, every=1, measure=[ActivationProbe()], budget=None, on_error="raise")
    w, b = model.weight.detach().numpy().copy(), model.bias.detach().numpy().copy()

    def moments(w: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return w @ mean + b, np.einsum("ij,jk,ik->i", w, cov, w)

    first = moments(w, b)
    found = monitor.step(x, y, lr=0.1).results["activations"]  # type: ignore[union-attr]
    np.testing.assert_allclose([found.means[0], found.variances[0]], [m.mean() for m in first], **TIGHT)
    assert math.isnan(found.mean_changes[0])
    previous = first
    for step in (1, 2):
        with torch.no_grad():
            model.weight.mul_(-1.5)
            model.bias.add_(step)
        now = moments(w := -1.5 * w, b := b + step)
        found = monitor.step(x, y, lr=0.1).results["activations"]  # type: ignore[union-attr]
        for name, other in (("changes", previous), ("drifts", first)):
            wanted = [np.abs(m - n).mean() for m, n in zip(now, other, strict=True)]
            values = [getattr(found, f"mean_{name}")[0], getattr(found, f"variance_{name}")[0]]
            np.testing.assert_allclose(values, wanted, **TIGHT)
        previous = now
    assert sum(found.counts[0]) == 50
    histogram = x.numpy() @ w.T + b
    assert found.edges[0] == pytest.approx(
        (histogram[:, found.channels[0]].min(), histogram[:, found.channels[0]].max()), rel=1e-12
    )


def test_gaps_ratios_and_dead_scales_as_planted() -> None:
    cov = np.diag([1.0, 4.0, 9.0, 16.0, 25.0])
    x = torch.tensor(_gaussian(40, np.arange(5.0), cov, 1))
    norm = nn.BatchNorm1d(5).double()
    norm.running_mean.copy_(torch.arange(5.0) + torch.tensor([0.0, 2.0, -9.0, 16.0, 25.0]))  # 0, 1, 3, 4, 5 sigma
    norm.running_var.copy_(torch.tensor([1.0, 4.0, 9.0, 16.0, 25.0]) * torch.tensor([0.5, 1.0, 7.0, 8.0, 9.0]))
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, -2.0, 2e-3, 1e-3, 2.1e-3], dtype=torch.float64))
    model = nn.Sequential(norm, nn.Linear(5, 1, bias=False).double())
    y = torch.zeros(40, 1, dtype=torch.float64)
    monitor = Monitor(model, half_sse, every=1, measure=[HealthProbe()], budget=None, on_error="raise")
    found = monitor.step(x, y, lr=0.1).results["health"]  # type: ignore[union-attr]
    np.testing.assert_allclose(found.mean_gaps, [3.0], **TIGHT)
    np.testing.assert_allclose(found.variance_ratios, [7.0], **TIGHT)
    np.testing.assert_allclose(found.dead, [0.4], **TIGHT)  # 2e-3 is at 1e-3 of the largest, and counts


def test_gradients_along_a_linear_chain() -> None:
    # h_i = a_i h_{i-1}: dL/dh_i = a_{i+1} ... a_k e, growth the geometric mean of a_2 ... a_k.
    scales = [3.0, 0.5, -4.0, 2.0]
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in scales)).double()
    with torch.no_grad():
        for layer, a in zip(model, scales, strict=True):
            layer.weight.fill_(a)
    one = torch.ones(1, 1, dtype=torch.float64)
    monitor = Monitor(model, half_sse, every=1, measure=[HealthProbe()], budget=None, on_error="raise")
    found = monitor.step(one, one, lr=0.1).results["health"]  # type: ignore[union-attr]
    error = -13.0
    np.testing.assert_allclose(found.grad_norms, [abs(error) * v for v in (4.0, 8.0, 2.0, 1.0)], **TIGHT)
    assert found.growth == pytest.approx(4.0 ** (1 / 3), rel=1e-12)
