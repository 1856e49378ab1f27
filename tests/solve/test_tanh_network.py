"""The network: units on the line stay and converge linearly; joint minima need not align."""

import numpy as np
import pytest
from problems import cosine
from scipy.optimize import minimize

import reference
from normscope.solve import Design, convergence_bound, gaussian_cloud, named_loss
from normscope.solve.rates import identities
from normscope.solve.second_moment import second_moment
from normscope.solve.tanh_network import TanhNetwork, alternate

# The counterexample: z ~ N(u, S - u u^T) in three dimensions, two units, theta = (1, 0.7), softplus.
U = np.array([0.6, 0.3, -0.2])
S = np.array([[1.0, 0.3, 0.0], [0.3, 0.8, 0.1], [0.0, 0.1, 0.5]]) + np.outer(U, U)
THETA = np.array([1.0, 0.7])
LINE = np.linalg.solve(S, U)
# Cosines with the line in the S inner product, in which the minima, a circle of them around the line, all agree.
COSINES, BELOW = [0.993, 0.987], 4.13e-5


@pytest.fixture(scope="module")
def cloud():
    z, weights = gaussian_cloud(U, S, nodes=20)
    design = Design(z, weights)
    return design, second_moment(design)[1]


def network(cloud, weights, theta=THETA):
    design, spectrum = cloud
    return TanhNetwork(design, named_loss("softplus"), theta, weights, alpha=0.0, spectrum=spectrum)


def loss_and_gradient(cloud, flat):
    net = network(cloud, flat.reshape(2, 3))
    return net.value(), net.gradient().ravel()


def best_aligned():
    """Lengths on the line by the twin's own quadrature."""
    found = minimize(
        lambda c: reference.two_unit_loss(U, S, THETA, c[0] * LINE, c[1] * LINE),
        [-2.0, -2.0],
        method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-13},
    )
    return np.outer(found.x, LINE)


def test_the_cloud_has_the_moments(cloud):
    design, _ = cloud
    np.testing.assert_allclose(design.gram(), S, atol=1e-12)
    np.testing.assert_allclose(design.backward(np.ones(len(design.x)))[0], U, atol=1e-12)


def test_loss_and_gradient_are_the_twins(cloud):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((2, 3))
    net = network(cloud, weights)
    assert net.value() == pytest.approx(reference.two_unit_loss(U, S, THETA, *weights), abs=1e-7)
    step = 1e-4
    for i, k in ((0, 0), (1, 2)):
        up, down = weights.copy(), weights.copy()
        up[i, k] += step
        down[i, k] -= step
        slope = (reference.two_unit_loss(U, S, THETA, *up) - reference.two_unit_loss(U, S, THETA, *down)) / (2 * step)
        assert net.gradient()[i, k] == pytest.approx(slope, abs=1e-6)


def test_a_unit_converges_linearly_while_the_others_are_on_the_line(cloud):
    rng = np.random.default_rng(1)
    _, spectrum = cloud
    for theta in (THETA, np.array([1.0, 0.7, 0.4])):
        weights = np.stack([rng.standard_normal(3), *(-c * LINE for c in (1.5, 0.6)[: len(theta) - 1])])
        net = network(cloud, weights, theta)
        history = net.visit(0, steps=40, search=True, safeguard=False).history
        best = -float(U @ LINE)
        gap = history["rho"] - best
        bound = convergence_bound(
            "least_squares", np.arange(41), mu=spectrum.smallest, lipschitz=spectrum.largest, gap=gap[0]
        )
        # Quadrature, 20 nodes an axis, is right to about 1e-8 in c1: so is the step.
        assert (gap <= bound * (1 + 1e-6) + 1e-12).all()
        assert (history["slack"] >= -1e-9).all()
        assert 1 - abs(cosine(net.weights[0], LINE)) < 1e-10


def test_units_started_on_the_line_stay_and_every_one_converges(cloud):
    net = network(cloud, np.outer([-0.5, -3.0], LINE))
    norms = [np.linalg.norm(net.gradient())]
    for _ in range(25):
        for i in range(2):
            net.visit(i, steps=2, search=False, safeguard=False)
        norms.append(np.linalg.norm(net.gradient()))
        for w in net.weights:
            assert 1 - abs(cosine(w, LINE)) < 1e-9
    # Linear: straight on a log scale over six decades.
    logs = np.log(norms)[np.array(norms) > 1e-7 * norms[0]]
    assert logs[-1] - logs[0] < np.log(1e-5)
    assert np.polyfit(np.arange(len(logs)), logs, 1)[0] < -0.3


def test_counterexample_joint_minima_lie_off_the_line_and_below_it(cloud):
    """Three digits, by BFGS on the cloud and by the twin's quadrature; the source says both units align."""
    design, _ = cloud
    aligned = best_aligned()
    start = aligned + 0.3 * np.random.default_rng(0).standard_normal((2, 3))
    found = minimize(
        lambda v: loss_and_gradient(cloud, v), start.ravel(), jac=True, method="BFGS", options={"gtol": 1e-9}
    )
    w1, w2 = found.x.reshape(2, 3)
    assert np.linalg.norm(loss_and_gradient(cloud, found.x)[1]) < 1e-7
    cosines = [-(U @ w) / np.sqrt((w @ S @ w) * (U @ LINE)) for w in (w1, w2)]
    assert cosines == pytest.approx(COSINES, abs=5e-4)
    below = reference.two_unit_loss(U, S, THETA, *aligned) - reference.two_unit_loss(U, S, THETA, w1, w2)
    assert below == pytest.approx(BELOW, rel=2e-3)

    # The cause: b = (E d^2 l / dm_i dm_j) is singular at the joint minimum.
    assert abs(np.linalg.det(bends(design, w1, w2))) < 1e-6
    # The best aligned point is a saddle with two directions down.
    hessian = np.empty((6, 6))
    for k, e in enumerate(np.eye(6) * 1e-5):
        up, down = loss_and_gradient(cloud, aligned.ravel() + e)[1], loss_and_gradient(cloud, aligned.ravel() - e)[1]
        hessian[k] = (up - down) / 2e-5
    values = np.linalg.eigvalsh((hessian + hessian.T) / 2)
    assert (values < -1e-6).sum() == 2


def bends(design, w1, w2):
    t = np.tanh(np.stack([design.x @ w1, design.x @ w2]))
    dt, output = 1 - t * t, THETA @ t
    _, slope, bend = named_loss("softplus").evaluate(output)
    b = np.einsum("n,in,jn->ij", design.weights * bend, THETA[:, None] * dt, THETA[:, None] * dt)
    return b + np.diag((design.weights * slope) @ (THETA[:, None] * -2 * t * dt).T)


def test_one_unit_aligns_if_the_other_is_on_the_line_and_not_if_it_is_off(cloud):
    off = np.array([0.2, -1.5, 0.4])
    for other, expected in ((off, False), (-LINE, True)):
        net = network(cloud, np.stack([-U, other]))
        net.visit(0, steps=100, search=True, tol=1e-9)
        assert (1 - abs(cosine(net.weights[0], LINE)) < 1e-7) is expected


def test_alternating_never_raises_the_loss():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((200, 4))
    design = Design(x, center=True, constant=True).signed(np.where(np.prod(x[:, :2], axis=1) > 0, -1.0, 1.0))
    net = TanhNetwork(
        design,
        named_loss("sigmoid"),
        np.ones(5),
        rng.standard_normal((5, 5)),
        alpha=1e-3,
        spectrum=second_moment(design)[1],
    )
    trained = alternate(net, sweeps=10, steps=3, tol=0.0)
    assert (np.diff(trained.history["objective"]) <= 1e-10).all()
    assert trained.history["objective"][-1] < 0.8 * trained.history["objective"][0]


def test_debug_checks_every_unit(monkeypatch):
    """The identities that hold on all data, on every iterate of every unit: steps + 1 of them a visit."""
    rng = np.random.default_rng(3)
    design = Design(rng.standard_normal((100, 3)), center=True, constant=True).signed(np.resize([1.0, -1.0], 100))
    net = TanhNetwork(
        design,
        named_loss("softplus"),
        np.ones(2),
        rng.standard_normal((2, 4)),
        alpha=1e-3,
        spectrum=second_moment(design)[1],
    )
    seen = []
    monkeypatch.setattr(
        "normscope.solve.iteration.identities",
        lambda problem: lambda ray, gamma, pull: (seen.append(gamma), identities(problem)(ray, gamma, pull)),
    )
    alternate(net, sweeps=2, steps=3, tol=0.0, debug=True)
    assert len(seen) == 2 * 2 * 4
