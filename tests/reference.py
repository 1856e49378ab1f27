r"""Slow twins: the formulas of the papers as plain float64 loops, NumPy in and NumPy out.

Written from the papers and not from the package, so that a fast path and its twin can disagree.
No torch, no autograd, no vectorised reductions: every sum is one correctly rounded ``math.fsum``.
The measurements of a training run, at the end, are the exception: they take torch modules, and every number
comes from a deep copy of the whole model and optimizer, moved in place and run from the start with plain autograd.

    symbol        meaning
    x[i, k, s]    input: sample i, channel k, site s (none, one or more trailing axes)
    m             values behind one channel's statistics: samples times sites
    mu, var       batch mean and biased batch variance, (1/m) sum (x - mu)^2
    gamma, beta   scale and shift per channel
    g             dl/dy, the gradient that arrives from above

Sources named below: "article" is the encyclopedia article on batch normalization (its section
Procedures, after Ioffe and Szegedy 2015); "Santurkar et al." is "How does batch normalization help
optimization?" (2018) with its supplement; "torch" is the documentation of ``torch.nn.BatchNorm2d``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.norms.kinds import Identity as EmptySlot

Loss = Callable[[nn.Module], Tensor]  # the scalar loss of the batch at hand, for a model


def _sites(x: np.ndarray, k: int) -> list[tuple[int, ...]]:
    """Indices of every value that belongs to channel k of x, shape (N, C, *space)."""
    return [(i, k, *s) for i in range(x.shape[0]) for s in np.ndindex(*x.shape[2:])]


def _mean_and_variance(values: Sequence[float]) -> tuple[float, float]:
    """Mean and biased variance of a list of numbers."""
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((v - mean) ** 2 for v in values) / len(values)


def batch_norm(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Batch normalization, training mode.

        mu  = (1/m) sum_i x_i
        var = (1/m) sum_i (x_i - mu)^2
        y_i = gamma (x_i - mu) / sqrt(var + eps) + beta

    Source: article, Transformation; convolutions share statistics over the sites (Santurkar et al., A.2.1).

    Returns: y with the shape of x; mu and var, one per channel, var biased.

    Example:
        >>> y, mean, var = batch_norm(np.array([[1.0], [3.0]]), np.ones(1), np.zeros(1), 0.0)
        >>> y.ravel().tolist(), mean.tolist(), var.tolist()
        ([-1.0, 1.0], [2.0], [1.0])
    """
    y = np.empty(x.shape, dtype=np.float64)
    mean, var = np.empty(x.shape[1]), np.empty(x.shape[1])
    for k in range(x.shape[1]):
        sites = _sites(x, k)
        mean[k], var[k] = _mean_and_variance([float(x[at]) for at in sites])
        for at in sites:
            x_hat = (float(x[at]) - mean[k]) / math.sqrt(var[k] + eps)
            y[at] = gamma[k] * x_hat + beta[k]
    return y, mean, var


def batch_norm_backward(
    x: np.ndarray, gamma: np.ndarray, eps: float, g: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Gradient of a loss l through batch normalization, by the six formulas of the article.

        dl/dxhat_i = g_i gamma
        dl/dgamma  = sum_i g_i xhat_i
        dl/dbeta   = sum_i g_i
        dl/dvar    = sum_i g_i (x_i - mu) (-gamma/2) (var + eps)^(-3/2)
        dl/dmu     = sum_i g_i (-gamma) / sqrt(var + eps) + dl/dvar (1/m) sum_i (-2) (x_i - mu)
        dl/dx_i    = dl/dxhat_i / sqrt(var + eps) + dl/dvar 2 (x_i - mu) / m + dl/dmu / m

    Source: article, Backpropagation. The second term of dl/dmu is zero and kept as printed.

    Returns: dl/dx with the shape of x; dl/dgamma and dl/dbeta, one per channel.

    Example: a loss that adds up y cannot be changed through x.
        >>> x = np.array([[1.0], [2.0], [6.0]])
        >>> d_x, d_gamma, d_beta = batch_norm_backward(x, np.array([2.0]), 0.5, np.ones((3, 1)))
        >>> bool(np.abs(d_x).max() < 1e-15), round(float(abs(d_gamma[0])), 12), float(d_beta[0])
        (True, 0.0, 3.0)
    """
    d_x = np.empty(x.shape, dtype=np.float64)
    d_gamma, d_beta = np.empty(x.shape[1]), np.empty(x.shape[1])
    for k in range(x.shape[1]):
        sites = _sites(x, k)
        m = len(sites)
        mu, var = _mean_and_variance([float(x[at]) for at in sites])
        root = math.sqrt(var + eps)

        d_gamma[k] = math.fsum(g[at] * (x[at] - mu) / root for at in sites)
        d_beta[k] = math.fsum(g[at] for at in sites)
        d_var = math.fsum(g[at] * (x[at] - mu) * (-gamma[k] / 2 * (var + eps) ** -1.5) for at in sites)
        d_mu = math.fsum(g[at] * (-gamma[k] / root) for at in sites)
        d_mu += d_var * math.fsum(-2 * (x[at] - mu) for at in sites) / m
        for at in sites:
            d_x_hat = g[at] * gamma[k]
            d_x[at] = d_x_hat / root + d_var * 2 * (x[at] - mu) / m + d_mu / m
    return d_x, d_gamma, d_beta


def running_average(
    history: Iterable[tuple[np.ndarray, np.ndarray, int]], momentum: float | None
) -> tuple[np.ndarray, np.ndarray]:
    r"""Running mean and variance after the training batches of ``history``, oldest first.

        new = (1 - momentum) old + momentum observed,     start: mean 0, variance 1
        momentum None: momentum = 1/t at the t-th batch, which is the plain average

    The observed variance is the unbiased one, var m / (m - 1).
    Source: torch (arguments ``momentum`` and ``track_running_stats``, and the note on momentum).

    Args: history: (mu, var, m) per batch, var biased as ``batch_norm`` returns it.
    Returns: running mean and running variance, one per channel; floats 0 and 1 for an empty history.

    Example:
        >>> one, four = np.array([1.0]), np.array([4.0])
        >>> mean, var = running_average([(one, four, 5)], 0.1)
        >>> round(float(mean[0]), 12), round(float(var[0]), 12)
        (0.1, 1.4)
    """
    mean, var = np.float64(0.0), np.float64(1.0)
    for t, (batch_mean, batch_var, m) in enumerate(history, start=1):
        rate = 1.0 / t if momentum is None else momentum
        mean = (1 - rate) * mean + rate * np.asarray(batch_mean, dtype=np.float64)
        var = (1 - rate) * var + rate * np.asarray(batch_var, dtype=np.float64) * m / (m - 1)
    return mean, var


def population_statistics(batches: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    r"""Statistics for inference from whole training batches B of any sizes m_B.

        E   = sum_B m_B mu_B / sum_B m_B
        Var = sum_B m_B v_B / sum_B (m_B - 1),     v_B biased, around the batch's own mean

    With equal sizes this is the article's E = E_B[mu_B], Var = m/(m-1) E_B[v_B]; m_B counts samples times
    sites. The weights make both unbiased when the last batch is short.
    Source: article, Inference (equal sizes); the weights are the pooled-variance estimator.

    Returns: E and Var, one per channel.

    Example:
        >>> mean, var = population_statistics([np.array([[0.0], [2.0]]), np.array([[1.0], [1.0], [4.0]])])
        >>> mean.tolist(), round(float(var[0]), 12)
        ([1.6], 2.666666666667)
    """
    batches = list(batches)
    channels = batches[0].shape[1]
    mean, var = np.empty(channels), np.empty(channels)
    for k in range(channels):
        count, mean_sum, square_sum, freedom = 0, 0.0, 0.0, 0
        for batch in batches:
            values = [float(batch[at]) for at in _sites(batch, k)]
            mu, v = _mean_and_variance(values)
            count += len(values)
            mean_sum += len(values) * mu
            square_sum += len(values) * v
            freedom += len(values) - 1
        mean[k], var[k] = mean_sum / count, square_sum / freedom
    return mean, var


def noisy_batch_norm(
    a: np.ndarray, mu_unit: np.ndarray, sigma_unit: np.ndarray, m_elem: np.ndarray, s_elem: np.ndarray
) -> np.ndarray:
    r"""Update of "noisy" BatchNorm, given its draws.

        m_ij = mu_j + m_elem_ij          m_elem ~ U(-r_mu, r_mu),  mu_j ~ U(-n_mu, n_mu)
        s_ij = sigma_j + s_elem_ij       s_elem ~ N(0, r_sigma),   sigma_j ~ U(1, n_sigma)
        a_ij <- s_ij a_ij + m_ij

    Source: Santurkar et al., Algorithm 1, lines 6 to 12. Differs from the print: the draws of each element
    are given as deviations from their unit's mu_j and sigma_j (the same distribution). For draws that
    already contain them, pass zeros as mu_unit and sigma_unit.

    Args: a, m_elem, s_elem: (N, C, *space), a batch-normalized; mu_unit, sigma_unit: (C,).

    Example:
        >>> one = np.ones((1, 1))
        >>> noisy_batch_norm(3 * one, np.array([0.5]), np.array([1.25]), 0.25 * one, -0.25 * one).item()
        3.75
    """
    out = np.empty(a.shape, dtype=np.float64)
    for k in range(a.shape[1]):
        for at in _sites(a, k):
            m_ij = mu_unit[k] + m_elem[at]
            s_ij = sigma_unit[k] + s_elem[at]
            out[at] = s_ij * a[at] + m_ij
    return out


def noisy_moments(n_mu: float, n_sigma: float, r_mu: float, r_sigma: float) -> dict[str, float]:
    r"""What "noisy" BatchNorm does to the moments of one unit with mean 0 and variance 1, large batch.

    With M = mu_j ~ U(-n_mu, n_mu) and S = sigma_j ~ U(1, n_sigma) the unit's moments at one step are

        mean = M
        var  = S^2 + r_sigma^2 + r_mu^2 / 3        E s^2 of N(S, r_sigma), variance of U(-r_mu, r_mu)

    and for two independent steps, by integration over the squares of side 2 n_mu and w = n_sigma - 1,

        E|mean' - mean|   = 2 n_mu / 3              E(mean' - mean)^2 = (2 n_mu)^2 / 6
        E|var' - var|     = w (n_sigma + 1) / 3     E(var' - var)^2   = 2 Var S^2
        E var             = (1 + n_sigma + n_sigma^2) / 3 + r_sigma^2 + r_mu^2 / 3
        Var var = Var S^2 = (1 + n_sigma + n_sigma^2 + n_sigma^3 + n_sigma^4) / 5 - (E S^2)^2

    r_sigma is a standard deviation (the paper does not say). A batch of m adds O(1/m) to these; at
    m = 256 that is one to two per cent.
    Source: Santurkar et al., Algorithm 1 (the distributions); the integrals are ours.

    Returns: ``mean_shift`` E|mean' - mean|, ``var_shift`` E|var' - var|, ``var`` E var, and the standard
    deviation of each single observation under the same name with ``_std``. Successive differences share a
    draw: a standard error std / sqrt(n) needs n disjoint pairs of steps, or n units at one step.

    Example: the paper's constants.
        >>> moments = noisy_moments(0.5, 1.25, 0.1, 0.1)
        >>> [round(moments[name], 4) for name in ("mean_shift", "var_shift", "var")]
        [0.3333, 0.1875, 1.2842]
    """
    b = n_sigma
    width = 2 * n_mu
    s2 = (1 + b + b**2) / 3
    s4 = (1 + b + b**2 + b**3 + b**4) / 5
    var_of_s2 = s4 - s2**2
    mean_shift = width / 3
    var_shift = abs(b - 1) * (b + 1) / 3
    return {
        "mean_shift": mean_shift,
        "mean_shift_std": math.sqrt(width**2 / 6 - mean_shift**2),
        "var_shift": var_shift,
        "var_shift_std": math.sqrt(max(2 * var_of_s2 - var_shift**2, 0.0)),
        "var": s2 + r_sigma**2 + r_mu**2 / 3,
        "var_std": math.sqrt(max(var_of_s2, 0.0)),
    }


def lp_norm(
    x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float, p: float, centered: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Normalization by the mean and an averaged l_p norm, training mode.

        y_i   = gamma (x_i - mu) / (n_p + eps) + beta
        n_1   = (1/m) sum_i |z_i|,   n_2 = sqrt((1/m) sum_i z_i^2),   n_inf = max_i |z_i|
        z = x, or z = x - mu with ``centered``

    Source: Santurkar et al., section 3.3: "normalizes them by the average of their l_p-norm (before
    shifting the mean)", hence z = x. The 1/m for p = 2 and the place of eps are our reading.

    Returns: y with the shape of x; mu and n_p, one per channel.

    Example:
        >>> x = np.array([[1.0], [3.0]])
        >>> y, mean, norm = lp_norm(x, np.ones(1), np.zeros(1), 0.0, 1, centered=False)
        >>> y.ravel().tolist(), mean.tolist(), norm.tolist()
        ([-0.5, 0.5], [2.0], [2.0])
    """
    y = np.empty(x.shape, dtype=np.float64)
    mean, norm = np.empty(x.shape[1]), np.empty(x.shape[1])
    for k in range(x.shape[1]):
        sites = _sites(x, k)
        mean[k] = math.fsum(x[at] for at in sites) / len(sites)
        z = [float(x[at] - mean[k] if centered else x[at]) for at in sites]
        if p == 1:
            norm[k] = math.fsum(abs(value) for value in z) / len(z)
        elif p == 2:
            norm[k] = math.sqrt(math.fsum(value**2 for value in z) / len(z))
        elif p == math.inf:
            norm[k] = max(abs(value) for value in z)
        else:
            raise ValueError(f"p is 1, 2 or inf, not {p!r}")
        for at in sites:
            y[at] = gamma[k] * (x[at] - mean[k]) / (norm[k] + eps) + beta[k]
    return y, mean, norm


def deep_linear_loss(weights: Sequence[np.ndarray], x: np.ndarray, a: np.ndarray) -> float:
    r"""Loss of a deep linear network, summed over data and outputs.

        l = 1/2 sum_n sum_o ((W_k ... W_1 x_n)_o - (A x_n)_o)^2

    Source: Santurkar et al., A.1 (the network); the sum and the factor 1/2 are read off the plotted losses.
    Differs from the print: layers are counted from the input, the print's W_1 ... W_k from the output.

    Args: weights: W_1 (next to the input) to W_k; x: (n, d), one sample a row; a: (outputs, d).

    Example:
        >>> two, three, four = (np.array([[value]]) for value in (2.0, 3.0, 4.0))
        >>> deep_linear_loss([two, three], np.array([[1.0], [2.0]]), four)
        10.0
    """

    def apply(matrix: np.ndarray, vector: list[float]) -> list[float]:
        return [math.fsum(w * v for w, v in zip(row, vector, strict=True)) for row in matrix.tolist()]

    squares = []
    for sample in x.tolist():
        hidden = sample
        for weight in weights:
            hidden = apply(weight, hidden)
        squares += [(h - t) ** 2 for h, t in zip(hidden, apply(a, sample), strict=True)]
    return 0.5 * math.fsum(squares)


def heavy_ball(
    grad: Callable[[np.ndarray], np.ndarray], theta0: np.ndarray, lr: float, momentum: float, steps: int
) -> np.ndarray:
    r"""Gradient descent with momentum (Polyak's heavy ball), started at rest.

        theta_{t+1} = theta_t - lr grad(theta_t) + momentum (theta_t - theta_{t-1}),     theta_{-1} = theta_0

    Source: Polyak 1964. The same iterates as ``torch.optim.SGD(momentum=...)`` without dampening at a
    constant rate.

    Returns: the iterates theta_0 to theta_steps, stacked along a new first axis.

    Example:
        >>> heavy_ball(lambda theta: theta, np.array(1.0), lr=0.5, momentum=0.5, steps=2).tolist()
        [1.0, 0.5, 0.0]
    """
    path = [np.asarray(theta0, dtype=np.float64)]
    before = path[0]
    for _ in range(steps):
        now = path[-1]
        path.append(now - lr * grad(now) + momentum * (now - before))
        before = now
    return np.stack(path)


def rayleigh_descent(u: np.ndarray, s: np.ndarray, w0: np.ndarray, steps: int) -> np.ndarray:
    r"""Gradient descent on rho(w) = -(u^T w)^2 / (w^T S w).

        w_{t+1} = w_t - eta_t grad rho(w_t),     eta_t = w_t^T S w_t / (2 L |rho(w_t)|),     L = lambda_max(S)
        grad rho = -2 (u^T w) u / (w^T S w) + 2 (u^T w)^2 S w / (w^T S w)^2

    Source: article, Least-square problem.

    Returns: the iterates w_0 to w_steps, stacked; not rescaled.
    """
    largest = float(np.linalg.eigvalsh(s)[-1])
    path = [np.array(w0, dtype=np.float64)]
    for _ in range(steps):
        w = path[-1]
        uw = math.fsum(u * w)
        sw = np.array([math.fsum(row * w) for row in s])
        wsw = math.fsum(w * sw)
        rho = -(uw**2) / wsw
        grad = -2.0 * uw * u / wsw + 2.0 * uw**2 * sw / wsw**2
        path.append(w - wsw / (2.0 * largest * abs(rho)) * grad)
    return np.stack(path)


def normalized_step(
    z: np.ndarray,
    omega: np.ndarray,
    first: Callable[[float], float],
    second: Callable[[float], float],
    w: np.ndarray,
    gamma: float,
    printed: bool = False,
) -> np.ndarray:
    r"""One direction step of GDNP on weighted samples z_i, from the definitions.

        w~     = gamma w / ||w||_S,                               S = sum_i omega_i z_i z_i^T,  u = sum_i omega_i z_i
        grad_w = (gamma/||w||_S)(I - S w w^T/||w||_S^2) grad f(w~)
        h      = E phi'(z^T w~)(u^T w) - E phi''(z^T w~)(u^T w~)(u^T w)      printed: ... (u^T w)^2
        w+     = w - s grad_w,    s = -||w||_S^3 / (L gamma h)

    Source: article, Learning halfspace problem; the factor gamma/||w||_S in h is missing there.
    """
    d = len(w)
    s = np.array([[math.fsum(omega * z[:, i] * z[:, j]) for j in range(d)] for i in range(d)])
    u = np.array([math.fsum(omega * z[:, i]) for i in range(d)])
    norm = math.sqrt(float(w @ s @ w))
    tilde = gamma * w / norm
    slopes = np.array([first(float(row @ tilde)) for row in z])
    bends = np.array([second(float(row @ tilde)) for row in z])
    gradient = np.array([math.fsum(omega * slopes * z[:, i]) for i in range(d)])
    grad_w = gamma / norm * (gradient - s @ w * float(w @ gradient) / norm**2)
    uw = float(u @ w)
    other = uw if printed else float(u @ tilde)
    h = math.fsum(omega * slopes) * uw - math.fsum(omega * bends) * other * uw
    step = -(norm**3) / (float(np.linalg.eigvalsh(s)[-1]) * gamma * h)
    return w - step * grad_w


def gaussian_mean(function: Callable[[float], float], mean: float, sd: float) -> float:
    """E function(mean + sd xi), xi ~ N(0, 1), by the trapezoid rule on [-12, 12], exact to rounding for smooth ones."""
    step = 1 / 64
    grid = [k * step for k in range(-12 * 64, 12 * 64 + 1)]
    return math.fsum(step * math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * function(mean + sd * x) for x in grid)


def two_unit_loss(u: np.ndarray, s: np.ndarray, theta: Sequence[float], w1: np.ndarray, w2: np.ndarray) -> float:
    r"""E log(1 + exp(theta_1 tanh m_1 + theta_2 tanh m_2)), m_i = z^T w_i, z ~ N(u, S - u u^T).

    By the trapezoid rule in the plane of (m_1, m_2). Source: article, Neural networks.
    """
    cov = s - np.outer(u, u)
    a, b, c = float(w1 @ cov @ w1), float(w1 @ cov @ w2), float(w2 @ cov @ w2)
    l11, l21 = math.sqrt(a), b / math.sqrt(a)
    l22 = math.sqrt(max(c - l21**2, 0.0))
    x = np.arange(-9.0, 9.0 + 1e-9, 1 / 32)
    weight = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) / 32
    m1 = float(u @ w1) + l11 * x[:, None]
    m2 = float(u @ w2) + l21 * x[:, None] + l22 * x[None, :]
    loss = np.logaddexp(0.0, theta[0] * np.tanh(m1) + theta[1] * np.tanh(m2))
    return float(weight @ loss @ weight)


def _copies(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, nn.Parameter]]:
    """Deep copies that belong together, with the present ``.grad``, and the copied parameters by name.

    What the optimizer does not hold does not move and is frozen in the copy.
    """
    twin, stepper = copy.deepcopy((model, optimizer))
    parameters = dict(twin.named_parameters())
    moving = _rates(model, optimizer)
    for name, p in parameters.items():
        p.requires_grad_(name in moving)
    for name, p in model.named_parameters():
        parameters[name].grad = None if p.grad is None else p.grad.detach().clone()
    return twin, stepper, parameters


def _rates(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Learning rates by name, of the parameters that the optimizer moves: those it holds that are not frozen."""
    found = {}
    for name, p in model.named_parameters():
        for group in optimizer.param_groups:
            if p.requires_grad and any(p is q for q in group["params"]):
                found[name] = float(group["lr"])
    return found


def _backward(twin: nn.Module, loss: Loss, state: Tensor) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradient of a copy, whose buffers it changes; the pass draws its random numbers from ``state``."""
    torch.set_rng_state(state)
    for p in twin.parameters():
        p.grad = None
    value = loss(twin)
    value.backward()
    torch.set_rng_state(state)
    gradient = {n: torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for n, p in twin.named_parameters()}
    return float(value.detach()), gradient


def _norm(*tensors: Tensor) -> float:
    return math.sqrt(math.fsum(value**2 for t in tensors for value in t.detach().double().flatten().tolist()))


def _cosine(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    both = zip((v for t in a for v in t.flatten().tolist()), (v for t in b for v in t.flatten().tolist()), strict=True)
    norms = _norm(*a) * _norm(*b)
    return math.fsum(u * v for u, v in both) / norms if norms else math.nan


def landscape(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, factors: Sequence[float]
) -> dict[str, float | list[float]]:
    r"""Loss and gradient along the gradient step.

        theta_c = theta - c lr g,  g = grad L(theta)         lr of each parameter's group
        change_c = ||grad L(theta_c) - g||,   cosine_c between the two,   beta = max_c change_c / (c ||lr g||)

    Source: Santurkar et al., A.2.2.
    """
    state, rates = torch.get_rng_state(), _rates(model, optimizer)
    twin, _, _ = _copies(model, optimizer)
    here, gradient = _backward(twin, loss, state)
    g = {name: gradient[name].clone() for name in rates}
    losses, changes, cosines, betas = [], [], [], []
    for c in factors:
        twin, _, parameters = _copies(model, optimizer)
        with torch.no_grad():
            for name, rate in rates.items():
                parameters[name].sub_(c * rate * g[name])
        there, moved = _backward(twin, loss, state)
        losses.append(there)
        changes.append(_norm(*(moved[name] - g[name] for name in rates)))
        cosines.append(_cosine([moved[name] for name in rates], [g[name] for name in rates]))
        step = c * _norm(*(rate * g[name] for name, rate in rates.items()))
        betas.append(changes[-1] / step if step else math.nan)
    return {
        "loss": here,
        "losses": losses,
        "grad_norm": _norm(*g.values()),
        "changes": changes,
        "cosines": cosines,
        "betas": betas,
        "beta": max(betas),
    }


def next_parameters(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, update: str) -> dict[str, Tensor]:
    r"""All parameters after the coming step: the optimizer's own with the present ``.grad``, or theta - lr grad L."""
    state = torch.get_rng_state()
    twin, stepper, parameters = _copies(model, optimizer)
    if update == "optimizer":
        stepper.step()
    else:
        rates = _rates(model, optimizer)
        _, gradient = _backward(twin, loss, state)
        twin, _, parameters = _copies(model, optimizer)
        with torch.no_grad():
            for name, rate in rates.items():
                parameters[name].sub_(rate * gradient[name])
    torch.set_rng_state(state)
    return {name: p.detach().clone() for name, p in parameters.items()}


def first_calls(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss) -> list[str]:
    r"""Names of the modules that run, in the order in which their forwards begin for the first time."""
    state = torch.get_rng_state()
    twin, _, _ = _copies(model, optimizer)
    order: list[str] = []
    for name, module in twin.named_modules():

        def note(module: nn.Module, args: object, name: str = name) -> None:
            if name not in order:
                order.append(name)

        module.register_forward_pre_hook(note)
    loss(twin)
    torch.set_rng_state(state)
    return order


def _start(name: str, order: list[str]) -> int:
    """A module that is never called itself runs with the nearest module around it that is; last if there is none."""
    while name not in order and name:
        name = name.rpartition(".")[0]
    return order.index(name) if name in order else len(order)


_NORMALIZERS = ("BatchNorm", "LpNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm")


def _is_normalizer(module: nn.Module) -> bool:
    return any(kind in type(module).__name__ for kind in _NORMALIZERS)


def _weight(module: nn.Module) -> nn.Parameter | None:
    """W of a layer: its ``weight``; of those with several (LSTM, attention) the first one that the input meets."""
    if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
        return module.weight_ih_l0 if isinstance(module, nn.RNNBase) else module.in_proj_weight
    weight = getattr(module, "weight", None)
    return weight if isinstance(weight, nn.Parameter) and weight.ndim >= 2 else None


def covariate_shift(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, update: str
) -> dict[str, tuple[float, float, float]]:
    r"""Internal covariate shift of every layer with a weight of two or more axes, in the order they run.

        G = grad_{W_i} L(theta),   G' = the same with every parameter of every module that runs before i updated
        ||G - G'||,  cosine of G and G',  ||G||

    Source: Santurkar et al., Definition 2.1. Weights, biases, gamma and beta of earlier modules are all updated;
    a parameter that several modules share is updated where one of them runs before.
    """
    state = torch.get_rng_state()
    order = first_calls(model, optimizer, loss)
    after = next_parameters(model, optimizer, loss, update)
    twin, _, _ = _copies(model, optimizer)
    _, before = _backward(twin, loss, state)
    found = {}
    for layer in order:
        module = model.get_submodule(layer)
        twin, _, parameters = _copies(model, optimizer)
        if _weight(module) is None or not _weight(twin.get_submodule(layer)).requires_grad:
            continue
        earlier: list[nn.Parameter] = []
        for name, module in twin.named_modules():
            if _start(name, order) < order.index(layer):
                earlier += module.parameters(recurse=False)
        with torch.no_grad():
            for name, p in parameters.items():
                if any(p is q for q in earlier):
                    p.copy_(after[name])
        weight = next(n for n, p in parameters.items() if p is _weight(twin.get_submodule(layer)))
        _, moved = _backward(twin, loss, state)
        g, h = before[weight], moved[weight]
        found[layer] = (_norm(g - h), _cosine([g], [h]), _norm(g))
    return found


def critical_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    update: str,
    stop: float,
    points: int = 100,
) -> float:
    r"""Smallest s > 0 with L(theta + s d) > L(theta), d the coming update: a scan of (0, stop], then bisection."""
    state = torch.get_rng_state()
    after = next_parameters(model, optimizer, loss, update)
    here = {name: p.detach().clone() for name, p in model.named_parameters()}

    def value(s: float) -> float:
        twin, _, parameters = _copies(model, optimizer)
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(here[name] + s * (after[name] - here[name]))
        torch.set_rng_state(state)
        with torch.no_grad():
            found = float(loss(twin))
        torch.set_rng_state(state)
        return found

    start = value(0.0)
    low, high = 0.0, math.inf
    for k in range(1, points + 1):
        s = stop * k / points
        if value(s) > start:
            high = s
            break
        low = s
    while math.isfinite(high) and high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if value(middle) > start else (middle, high)
    return high


def _channels_second(values: Tensor, module: nn.Module) -> np.ndarray:
    """(N, C, *space); layers that act on the last axis have their channels there."""
    last = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.RNNBase, nn.MultiheadAttention)
    array = values.detach().double()
    return (array.movedim(-1, 1) if isinstance(module, last) and array.ndim > 2 else array).numpy()


def activation_moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss
) -> dict[str, tuple[list[float], list[float]]]:
    r"""Mean and biased variance of every channel over batch and space, at the output of weight layers and normalizers.

    In the order of the first calls; the slot of a normalizer counts where it is empty. A layer called more than once
    gives those of its first call. Source: Santurkar et al., Figures 7 and 8.
    """
    state = torch.get_rng_state()
    twin, _, _ = _copies(model, optimizer)
    found: dict[str, tuple[list[float], list[float]]] = {}
    for name, module in twin.named_modules():

        def note(module: nn.Module, args: object, output: Any, name: str = name) -> None:
            values = _channels_second(output if isinstance(output, Tensor) else output[0], module)
            moments = [
                _mean_and_variance([float(values[at]) for at in _sites(values, k)]) for k in range(values.shape[1])
            ]
            found.setdefault(name, ([mean for mean, _ in moments], [var for _, var in moments]))

        if _weight(module) is not None or _is_normalizer(module) or isinstance(module, EmptySlot):
            module.register_forward_hook(note)
    with torch.no_grad():
        loss(twin)
    torch.set_rng_state(state)
    return found


def moment_changes(
    now: tuple[list[float], list[float]], before: tuple[list[float], list[float]]
) -> tuple[float, float]:
    r"""mean_j |mu_j - mu'_j| and mean_j |var_j - var'_j|."""
    mean, var = (
        math.fsum(abs(a - b) for a, b in zip(x, y, strict=True)) / len(x) for x, y in zip(now, before, strict=True)
    )
    return mean, var


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def norm_health(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss
) -> tuple[dict[str, tuple[float, float, float]], dict[str, float]]:
    r"""What the normalizers hold against what this batch has, and the gradient at the outputs of the weight layers.

        median_j |running_mean_j - mu_j| / sigma_j,    median_j running_var_j / var_j     nan without running statistics
        share of j with |gamma_j| <= 1e-3 max |gamma|                                     nan without gamma
        ||dL/dh||, h the output of a weight layer that a gradient passes on its way to a parameter

    mu, var, sigma: of the normalizer's input, biased; l_p layers compare their norms, squared.

    Returns: normalizer -> the three; weight layer -> the norm. Both in the order of the first calls.
    """
    state = torch.get_rng_state()
    twin, _, _ = _copies(model, optimizer)
    norms: dict[str, tuple[float, float, float]] = {}
    outputs: dict[str, Tensor] = {}
    for name, module in twin.named_modules():

        def look(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], name: str = name) -> None:
            gap = ratio = dead = math.nan
            if getattr(module, "running_mean", None) is not None:
                x = (*args, *kwargs.values())[0].detach().double().numpy()
                gaps, ratios = [], []
                for k in range(x.shape[1]):
                    values = [float(x[at]) for at in _sites(x, k)]
                    mean, var = _mean_and_variance(values)
                    held = getattr(module, "running_var", None)
                    gaps.append(abs(float(module.running_mean[k]) - mean) / math.sqrt(var))
                    if held is not None:
                        ratios.append(float(held[k]) / var)
                    else:
                        around = mean if module.centered else 0.0
                        size = {
                            1: math.fsum(abs(v - around) for v in values) / len(values),
                            2: math.sqrt(math.fsum((v - around) ** 2 for v in values) / len(values)),
                            math.inf: max(abs(v - around) for v in values),
                        }[module.p]
                        ratios.append((float(module.running_norm[k]) / size) ** 2)
                gap, ratio = _median(gaps), _median(ratios)
            if isinstance(getattr(module, "weight", None), nn.Parameter):
                gamma = [abs(v) for v in module.weight.flatten().tolist()]
                dead = sum(v <= 1e-3 * max(gamma) for v in gamma) / len(gamma)
            norms.setdefault(name, (gap, ratio, dead))

        def open_up(module: nn.Module, args: object, output: Any, name: str = name) -> Any:
            h = output if isinstance(output, Tensor) else output[0]
            if name in outputs or not h.requires_grad:
                return output
            outputs[name] = torch.zeros_like(h, requires_grad=True)
            return h + outputs[name] if isinstance(output, Tensor) else (h + outputs[name], *output[1:])

        if _is_normalizer(module):
            module.register_forward_pre_hook(look, with_kwargs=True)
        if _weight(module) is not None:
            module.register_forward_hook(open_up)
    torch.set_rng_state(state)
    loss(twin).backward()
    torch.set_rng_state(state)
    return norms, {name: _norm(h.grad) for name, h in outputs.items()}


def central_jacobian(function: Callable[[np.ndarray], np.ndarray], at: np.ndarray, step: float = 1e-5) -> np.ndarray:
    r"""J[i, j] = (f_i(x + h e_j) - f_i(x - h e_j)) / 2h; of a gradient, the Hessian.

    Error: h^2 |f'''| / 6 + 1e-16 |f| / h.

    Example:
        >>> central_jacobian(lambda x: x**2, np.array([1.0, 3.0])).round(6).tolist()
        [[2.0, 0.0], [0.0, 6.0]]
    """
    columns = []
    for j in range(at.size):
        up, down = at.copy(), at.copy()
        up[j] += step
        down[j] -= step
        columns.append((function(up) - function(down)) / (2 * step))
    return np.stack(columns, axis=-1)


def output_hessian(loss: str, f: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""d^2 loss / df df of outputs f[n, k], flattened; losses are sums over samples: blocks on the diagonal.

    half_sse  delta_kl                half_mse  delta_kl / m              mse  2 delta_kl / (m C)
    cross_entropy  (p_k delta_kl - p_k p_l) / m,   p the softmax of f
    bce  s (1 - s) delta_kl / (m C),  s = 1 / (1 + exp(-f))
    huber  delta_kl / (m C) where |f - y| < 1, else 0               l1  0
    """
    m, c = f.shape
    out = np.zeros((m * c, m * c))
    for n in range(m):
        weights = [math.exp(v - float(f[n].max())) for v in f[n]]
        p = [w / math.fsum(weights) for w in weights]
        for k in range(c):
            s = 1 / (1 + math.exp(-float(f[n, k])))
            inside = float(abs(f[n, k] - y[n, k]) < 1) if loss == "huber" else 0.0
            diagonal = {
                "half_sse": 1.0,
                "half_mse": 1 / m,
                "mse": 2 / (m * c),
                "cross_entropy": p[k] / m,
                "bce": s * (1 - s) / (m * c),
                "huber": inside / (m * c),
                "l1": 0.0,
            }[loss]
            out[n * c + k, n * c + k] = diagonal
            if loss == "cross_entropy":
                for other in range(c):
                    out[n * c + k, n * c + other] -= p[k] * p[other] / m
    return out
