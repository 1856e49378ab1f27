r"""Batch normalization of kernels, forward and backward.

A kernel holds the mean over channels of the product of two values, for each pair of places. Forward, this file
computes the kernel of the normalized values from the kernel of the values before. Backward, this file computes the
kernel of the gradient before the normalizer from the kernel of the gradient after the normalizer.

| symbol | means |
|---|---|
| m, S, n | samples, sites of each sample, and values of a channel: n = m S |
| z, zh, z' | a value before the normalizer, normalized, and with gamma and beta |
| s^2 | the variance that a channel is divided by, with eps |
| x, y | samples |
| a, b, p | places: a place is a site of a sample |
| K, K_c, K_h | kernel of the values, centred over the batch, and normalized |
| u, ubar | mean of K over the second place, and over both |
| P | the map that takes out the mean over the batch |
| g, G, G' | gradient with respect to z', its kernel, and the kernel of the gradient with respect to z |
| r, nu | E[1/s^2], and the degrees of freedom of s^2 |
| e, T | gradient that comes back from the next layer, and E[phi''] E[phi''] times the kernel of e |
| c, l, k | overlap mean(g zh), and two numbers from which the moments of c are computed |

    zh = (z - mean z) / s       z' = gamma zh + beta

**Two classes of pairs.** A kernel is stored for two classes of pairs: in class 0 both places belong to one sample, in
class 1 the places belong to two different samples (`site_pairs.py`). In a batch of m samples, class 0 has the weight
1/m and class 1 has the weight (m - 1)/m. A mean over the batch is the mean over both classes with these weights, so the
formulas below hold for batches of any size.

**Forward.** With u[a] = mean over (y, b) of K(x, a; y, b), and ubar the mean of u,

    K_c = P K P = K - u[a] - u[b] + ubar       s^2 = mean_a K(x, a; x, a) - ubar + eps       K_h = K_c / s^2

For inputs without structure s^2 = q - q_xy up to 1/m. This is the variance. Wei et al. 2019 print the second moment q
instead (erratum E-MF-6). Every channel has an s^2 of its own. s^2 is larger for a channel whose values lie more along
the few directions of largest variance (`_divided`).

**Backward.** Statistics that are held constant ("frozen") and statistics as trained give

    frozen        G' = gamma^2 r G
    as trained    G' = gamma^2 r (P (G - (l[a] + l[b]) K_h) P - k K_h)

The factor r = E[1/s^2] = nu / (nu - 2) / s^2 (`mean_inverse`) has nu = s^4 / mean(K_c^2) degrees of freedom: s^2 of one
channel is a sum of squares of correlated Gaussians, plus eps. For m samples without structure nu is m - 1, the factor
of Yang et al. 2019. A large eps does not fluctuate and leaves r at 1 / s^2.

As trained, the normalizer takes two directions out of the gradient: P takes out the mean over the batch, and the other
terms take out the direction of zh, which is c zh with c = mean(g zh). The gradient g depends on zh through phi'(z'),
g = phi'(z') e. By Stein's lemma, to first order,

    E[c zh[a] g[b]] = K_h (l[b] + mean(G K_h))      l[b] = gamma^2 mean_p(T[p, b] K_h(p; p))
    E[c^2] = mean(G K_h) + mean(l K_h(a; a))        k = mean(G K_h) - mean(l K_h(a; a))

Where all places have one variance, G' / (gamma^2 r) is P G P - E[c^2] K_h. T leaves out the n pairs of a place with
itself, among n^2 pairs.

Worked number: m = 8 samples without structure (q = 1, q_xy = 0), S = 1, eps = 0. Then ubar = 1/8, s^2 = 1 - 1/8 = 7/8,
nu = 8 - 1 = 7 and r = (7/5) / (7/8) = 1.6. The sample variance of 8 Gaussians is chi^2_7 / 8, and E[8 / chi^2_7] =
8/5 = 1.6 too.

    >>> found = normalize(ExactSites(1, 1, 8), torch.tensor([[[1.0]], [[0.0]]], dtype=torch.float64), eps=0.0)
    >>> found.variance, round(found.freedom, 9), round(found.inverse, 9)
    (0.875, 7.0, 1.6)

**Batches of which every pair is known.** The kernel of all m samples gives the whole spectrum: s^2 = eps +
sum l_j w_j^2, with l_j the eigenvalues of K_c / m and w_j independent Gaussians. Direction k has the share a_k^2 =
l_k w_k^2 / s^2 of a channel's zh. With 1/x = int_0^inf exp(-x t) dt,

    E[1/s^2] = int f(t) dt                         f(t) = exp(-eps t) prod_j (1 + 2 l_j t)^(-1/2)
    E[a_k^2] = int f(t) h_k(t) dt                  h_k(t) = l_k / (1 + 2 l_k t)
    E[a_k^2 / s^2] = int f(t) t h_k dt
    E[a_k^2 a_j^2 / s^2] = int f(t) t^2 / 2 h_k h_j dt, three times this integral for k = j

A gradient that is independent of zh comes back, as trained, as E[(1 - a a^T) P G P (1 - a a^T) / s^2]. In a batch of
photographs the largest direction is brightness. Channels that see much of the largest direction are divided by a larger
s, and lose more of this direction. So far less of this direction comes back than the means over channels would give.
Source: Wei et al. 2019, Eq. (23)-(25), corrected; the derivation is in docs/evidence/theory.md.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.theory.site_pairs import ExactSites, Sites, average

# Degrees of freedom above which three moments are used.
_FREEDOM_OF_THREE_MOMENTS = 4.0
# Relative difference up to which eigenvalues count as equal.
_EIGENVALUE_TOLERANCE = 1e-6
# Smallest number of directions with which E[1/s^2] exists.
_FEWEST_DIRECTIONS = 3
# Share of a direction in the variance up to which it counts as zero.
_ZERO_SHARE = 1e-9
# Share of eps in the variance above which a hundred channels are enough to meet the largest 1/s^2.
_LARGE_EPS_SHARE = 1e-2
# Terms of the continued fraction of E_n.
_FRACTION_TERMS = 60


@dataclass(frozen=True)
class Normalized:
    """The normalized kernel and its statistics, in the symbols of this file.

    Attributes:
        kernel: K_h.
        variance: s^2.
        inverse: E[1/s^2].
        freedom: nu.
        own: a sample's own share of mean(K_h^2).
        noise: variance of K_h from pair to pair.
        directions: principal directions of a batch of which every pair is known, or None.
    """

    sites: Sites
    kernel: Tensor
    variance: float
    inverse: float
    freedom: float
    own: float
    noise: float = 0.0
    directions: "Directions | None" = None


def centred(sites: Sites, kernel: Tensor) -> Tensor:
    """P K P: the mean over batch and sites taken out at both ends."""
    return kernel - sites.common(kernel)


def normalize(sites: Sites, kernel: Tensor, eps: float, noise: float = 0.0, uneven: float = 0.0) -> Normalized:
    """Normalize a kernel over the batch.

    noise: variance of the kernel from pair to pair. It lowers the degrees of freedom: a batch in D dimensions has at
        most D.
    uneven: relative variance of the places' variances (`place_lengths`). It raises a sample's own share.
    """
    middle = kernel - sites.common(kernel)
    spread = average(sites.diagonal(middle))
    variance = spread + eps
    if variance == 0:
        raise ValueError("divides by zero: all samples are alike before it, and its eps is 0")
    squares = middle.square()
    square, own = average(sites.rows(squares)), 0.0
    if not sites.each_sample:
        own = average(squares[0]) / sites.batch
        square += noise + uneven * own
    freedom = variance**2 / square if square > 0 else 0.0
    hat = middle / variance
    if sites.each_sample and (by_directions := _by_directions(hat[0], eps / variance, variance)):
        hat, inverse, directions = by_directions
        return Normalized(sites, hat[None], variance, inverse, freedom, own, 0.0, directions)
    # Below four degrees of freedom E[1/s^2] does not exist or is decided by rare batches.
    third = _third(sites, hat, square / variance**2) if freedom > _FREEDOM_OF_THREE_MOMENTS else 0.0
    inverse = mean_inverse(max(freedom, 4.0), third) / variance
    return Normalized(sites, _divided(sites, hat), variance, inverse, freedom, own / variance**2, noise / variance**2)


def _divided(sites: Sites, hat: Tensor) -> Tensor:
    r"""E[zh zh^T] of channels that are divided by their own s, from hat = K_c / E[s^2].

        E[l w^2 / s^2] = l E[1 / (s^2 + l chi^2_2)] = c l / (1 + 2 l)        s^2 = sum_j l_j w_j^2 + eps, of mean 1

    l are the eigenvalues over all places. The first equality is exact. The second equality replaces s^2 by its mean.
    The constant c makes the sum of all E[l w^2 / s^2] and of the share of eps equal to 1. Variance in few directions,
    such as the borders of small images have in all samples, is a smaller part of zh than of z. Kernels by offsets
    (`TorusSites`) are returned unchanged.
    """
    if not isinstance(sites, ExactSites):
        return hat
    m = sites.batch
    one, two = hat.unbind(-3)
    alike, own = _lessened(torch.stack([one + (m - 1) * two, one - two]), m * sites.count)
    divided = torch.stack([alike + (m - 1) * own, alike - own]) / m
    return divided / (1 - average(sites.diagonal(hat - divided)))


def _lessened(kernel: Tensor, places: int) -> Tensor:
    """l / (1 + 2 l) for the eigenvalues l of K / places."""
    return torch.linalg.solve(torch.eye(kernel.shape[-1], dtype=kernel.dtype) + 2 / places * kernel, kernel)


@dataclass(frozen=True)
class Directions:
    """Principal directions of a batch, the columns of `vectors`.

    Attributes:
        shares: E[a_k^2 / s^2].
        pairs: E[a_k^2 a_j^2 / s^2].
        most: number of directions with nine tenths of the variance.
    """

    most: int
    vectors: Tensor
    shares: Tensor
    pairs: Tensor

    def left(self, g: Tensor, inverse: float) -> Tensor:
        """E[(1 - a a^T) G (1 - a a^T) / s^2]."""
        rotated = self.vectors.T @ g @ self.vectors
        own = rotated.diagonal(dim1=-2, dim2=-1) @ self.pairs
        both = rotated * (inverse - self.shares[:, None] - self.shares + 2 * self.pairs)
        both = both - torch.diag_embed(2 * self.pairs.diagonal() * rotated.diagonal(dim1=-2, dim2=-1) - own)
        return self.vectors @ both @ self.vectors.T


def _by_directions(kernel: Tensor, eps: float, variance: float) -> tuple[Tensor, float, Directions] | None:
    """K_h, E[1/s^2] and the directions, by the trapezoid rule over log t.

    `kernel` and `eps` are divided by the variance. None for fewer than three directions and a small eps: there a few
    channels decide E[1/s^2].
    """
    values, vectors = torch.linalg.eigh(kernel)
    sizes = values.clamp_min(0) / len(values)
    if int((sizes > _ZERO_SHARE * sizes.sum()).sum()) < _FEWEST_DIRECTIONS and eps < _LARGE_EPS_SHARE:
        return None
    t = torch.arange(-30.0, 30.0, 0.25, dtype=torch.float64).exp()[:, None]
    spans = 1 + 2 * t * sizes
    weights = 0.25 * t * torch.exp(-eps * t - spans.log().sum(1, keepdim=True) / 2)
    each = sizes / spans
    pairs = (weights * t * t / 2 * each).T @ each
    pairs += 2 * torch.diag(pairs.diagonal())
    hat = (vectors * (len(values) * (weights * each).sum(0))) @ vectors.T
    most = 1 + int((sizes.flip(0).cumsum(0) < 0.9 * sizes.sum()).sum())
    directions = Directions(most, vectors, (weights * t * each).sum(0) / variance, pairs / variance)
    return hat, float(weights.sum()) / variance, directions


def _third(sites: Sites, kernel: Tensor, square: float) -> float:
    """sum l^3 over the eigenvalues l of K / (number of places), for K of variance 1.

    0 stands for equal eigenvalues, and is the answer for kernels by offsets (`TorusSites`).

    square: sum l^2, in which inputs of D dimensions have added 1/D. To sum l^3 the dimensions add
        3 (sum l^2) / D + 1/D^2, as in Wishart matrices.
    """
    if not isinstance(sites, ExactSites):
        return 0.0
    one, two = kernel.unbind(-3)
    m, scale = sites.batch, 1 / (sites.batch * sites.count)
    own, all_alike = one - two, one + (m - 1) * two
    squares = [scale**2 * float(k.square().sum()) for k in (all_alike, own)]
    cubes = [scale**3 * float((k @ k).flatten() @ k.flatten()) for k in (all_alike, own)]
    exact = squares[0] + (m - 1) * squares[1]
    few = max(square - exact, 0.0)
    return cubes[0] + (m - 1) * cubes[1] + 3 * exact * few + few**2


def mean_inverse(freedom: float, third: float = 0.0) -> float:
    r"""E[1/s^2] for s^2 = sum l_i w_i^2 of mean 1, with independent Gaussians w_i.

        freedom / (freedom - 2)        for equal l
        e^x E_n(x) / (2 b)             s^2 = a + b chi^2_k of the same three moments, n = k/2, x = a / (2 b)

    With a few large l, s^2 is hardly ever near 0. Borders of small images make such large l, since all samples share
    them. E_n is computed by its continued fraction.

    Args:
        freedom: 1 / sum l^2.
        third: sum l^3; 0 (default) stands for equal l.

    Example: 3 eigenvalues of 0.1 and 700 of 0.001. The formula for equal l would give 1.065.
        >>> round(mean_inverse(1 / 0.0307, 0.0030007), 3)
        1.051
    """
    if third * freedom**2 <= 1 + _EIGENVALUE_TOLERANCE:
        return freedom / (freedom - 2)
    b = third * freedom
    k = 1 / (freedom * b * b)
    n, x = k / 2, (1 - b * k) / (2 * b)
    fraction = 0.0
    for j in range(_FRACTION_TERMS, 0, -1):
        fraction = j * (n + j - 1) / (x + n + 2 * j - fraction)
    return 1 / (x + n - fraction) / (2 * b)


def send_back(
    normalized: Normalized, g: Tensor, bend: Tensor, gamma2: float, *, trained: bool
) -> tuple[Tensor, Tensor]:
    """The cotangent's kernel before the normalizer, and what a trained gamma adds to lambda for each pair of places.

    trained: whether the statistics are differentiated through; False holds them constant.
    """
    sites, kernel = normalized.sites, normalized.kernel
    diagonal = sites.diagonal(kernel)
    overlaps = g * kernel
    products = torch.addcmul(overlaps, bend, gamma2 * sites.outer(diagonal, diagonal))
    rate, directions = gamma2 * normalized.inverse, normalized.directions
    if not trained:
        return rate * g, products
    leans = sites.rows(bend * sites.ends(gamma2 * diagonal)[1])
    along = -leans * diagonal if directions else sites.rows(overlaps) - leans * diagonal
    along = sites.place_mean(along)
    left, right = sites.ends(leans)
    straight = torch.zeros_like(g) if directions else g
    kept = centred(sites, torch.addcmul(straight, (left + right).unsqueeze(-3), kernel, value=-1))
    sent = rate * torch.addcmul(kept, along.reshape(-1, 1, 1, 1), kernel, value=-1)
    return sent + gamma2 * directions.left(centred(sites, g), normalized.inverse) if directions else sent, products
