r"""Batch normalization of kernels, forward and backward.

A kernel holds the mean over channels of the product of two values, for each pair of places. Forward, this file
computes the kernel of the normalized values from that of the values before. Backward, it computes the kernel of the
gradient before the normalizer from that of the gradient after it.

| symbol | means |
|---|---|
| m, S, n | samples, sites of each sample, and values of a channel: n = m S |
| z, zh, z' | a value before the normalizer, normalized, and with gamma and beta |
| s^2 | the variance that a channel is divided by, with eps |
| x, y; a, b, d | samples; places, which are a site of a sample |
| K, K_c, K_h | kernel of the values, centred over the batch, and normalized |
| u, ubar | mean of K over the second place, and over both |
| P | the map that takes out the mean over the batch |
| g, G, G' | gradient with respect to z', its kernel, and the kernel of the gradient with respect to z |
| r, nu | E[1/s^2], and the degrees of freedom of s^2 |
| c, l, T | overlap mean(g zh), and the two means that its moments are made of |

    zh = (z - mean z) / s       z' = gamma zh + beta

Forward. Means over the batch are means of the kernel: with u[a] = mean over (y, b) of K(x, a; y, b) and ubar its mean,

    K_c = K - u[a] - u[b] + ubar       s^2 = mean_a K(x, a; x, a) - ubar + eps       K_h = K_c / s^2

which is P K P in the algebra of two classes, so batches of any size are in it. For inputs without structure this is
s^2 = q - q_xy up to 1/m: the variance and not, as printed, the second moment q (erratum E-MF-6). Every channel has
an s^2 of its own, which is larger where its values lean more to few directions (`_divided`).

Backward, held constant ("frozen"):   G' = gamma^2 r G

Backward, as trained:                 G' = gamma^2 r (P (G - (l[a] + l[b]) K_h) P - d K_h)

r = E[1/s^2] = nu / (nu - 2) / s^2 (`mean_inverse`) with nu = s^4 / mean(K_c^2) degrees of freedom, because s^2 of one
channel is a sum of squares of correlated Gaussians (nu = m - 1 for m unstructured samples, the factor of Yang et al.
2019), and of eps, which does not fluctuate: a large one leaves r at 1 / s^2. P takes out the mean over the batch, the
rest the direction of zh, c zh with c = mean(g zh). g depends on zh through phi'(z'), so by Stein's lemma, to first
order,

    E[c zh[a] g[b]] = K_h (l[b] + mean(G K_h))      l[b] = gamma^2 mean_d(T[d, b] K_h(d; d))
    E[c^2] = mean(G K_h) + mean(l K_h(a; a))        T = E[phi''] E[phi''] times the kernel of e

where e is what comes back from the next layer, g = phi'(z') e; d = mean(G K_h) - mean(l K_h(a; a)). Where all places
have one variance this is P G P - E[c^2] K_h. T is taken without the places themselves, of which there are n among n^2
pairs.

Of a batch of which every pair is known, all of the spectrum is: s^2 = eps + sum l_j w_j^2, l_j the eigenvalues of
K_c / m and w_j Gaussian. With a_k^2 = l_k w_k^2 / s^2, the share of one direction in a channel's zh, and
1/x = int_0^inf exp(-x t) dt

    E[1/s^2] = int e(t) dt                         e(t) = exp(-eps t) prod_j (1 + 2 l_j t)^(-1/2)
    E[a_k^2] = int e(t) d_k(t) dt                  d_k(t) = l_k / (1 + 2 l_k t)
    E[a_k^2 / s^2] = int e(t) t d_k dt
    E[a_k^2 a_j^2 / s^2] = int e(t) t^2 / 2 d_k d_j dt, three times that for k = j

and a cotangent that is independent of zh goes back, as trained, as E[(1 - a a^T) P G P (1 - a a^T) / s^2]. Channels
that see much of the largest direction (in a batch of photographs, the brightness) are divided by more and lose more of
it, so that far less of that direction comes back than means over channels give.
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

    noise: variance of the kernel from pair to pair, which costs degrees of freedom: a batch in d dimensions has at most
    d. uneven: relative variance of places' variances (`place_lengths`), by which a sample's own share grows.
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
    r"""E[zh zh^T] of channels that are divided by their own s, from K_c / E[s^2]; by offsets as it is.

        E[l w^2 / s^2] = l E[1 / (s^2 + l chi^2_2)] = c l / (1 + 2 l)        s^2 = sum_j l_j w_j^2 + eps, of mean 1

    l: eigenvalues over all places; the first is exact, the second takes s^2 for its mean, and c makes the sum of all
    E[l w^2 / s^2] equal to that of shares, 1 with eps. Variance in few directions, such as borders of small images have
    in all samples, is a smaller part of zh than of z.
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
    """K_h, E[1/s^2] and the directions, by the trapezoid rule over log t; kernel and eps are over the variance.

    None below three directions with a small eps, where a few channels decide E[1/s^2].
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
    """sum l^3 over the eigenvalues l of K / (number of places), K of variance 1; 0 for equal ones, as by offsets.

    square: sum l^2, with the 1/d that finite dimensions d add. To sum l^3 they add 3 (sum l^2) / d + 1/d^2, as in
    Wishart matrices.
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
    r"""E[1/s^2] for s^2 = sum l_i w_i^2 of mean 1, w Gaussian; freedom: 1 / sum l^2, third: sum l^3, 0 for equal l.

        freedom / (freedom - 2)        for equal l
        e^x E_n(x) / (2 b)             s^2 = a + b chi^2_k of the same three moments, n = k/2, x = a / (2 b)

    A few large l, such as what borders of small images share over all samples, hardly reach s^2 = 0. E_n by its
    continued fraction.

    Example: 3 of 0.1 and 700 of 0.001; as if all were equal it is 1.065.
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
    """The cotangent's kernel before the normalizer, and the products of pairs that a trained gamma adds to lambda.

    trained: whether the statistics are differentiated through (held constant if not).
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
