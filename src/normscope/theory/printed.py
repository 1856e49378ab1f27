r"""The mean-field theory of Wei et al. 2019 as printed, equation by equation, with its errors.

    q^l      = sb2 + sw2 qh^{l-1}                                               (20) (23) (34) (39)
    q_xy^l   = sb2 + sw2 qh_xy^{l-1},   q_ab^l = sb2 + sw2 qh_ab^{l-1}          (21) (24) (35) (36) (40) (41)
  without BatchNorm, c = q_xy^l / q^l (c = q_ab^l / q^l for pairs of sites):
    qh^l     = q^l / 2,   qh_xy^l = q^l/(2 pi) (sqrt(1 - c^2) + c pi/2 + c asin c)          (20) (21) (34) to (36)
    qt^l     = sw2/2 qt^{l+1},   qt_xy^l = sw2/(2 pi) (pi/2 + asin c) qt_xy^{l+1}           (22) (37) (38)
  with BatchNorm:
    qh^l     = gamma^2/2,   qh_xy^l = qh_ab^l = gamma^2/(2 pi)                              (23) (24) (39) to (41)
    qt^l     = gamma^2 sw2/2 qt^{l+1}/q^l,   qt_xy^l = gamma^2 sw2/4 qt_xy^{l+1}/q^l        (25) (42) (43)
  and Claim 3.1, lambda >= sum_l f_l:
    f_l      = N_{l-1} qh_xy^{l-1} qt_xy^l                                                  dense
    f_l      = N_{l-1} [(K_l - 1) qt_ab^l + qt_xy^l] [(K_l - 1) qh_ab^{l-1} + qh_xy^{l-1}]  convolutional (45)

| symbol | name here | meaning |
|---|---|---|
| q, q_xy | `q`, `q_xy` | second moment of a preactivation; product of those of two samples |
| qh | `q_hat` | the same of the layer's output; `q_hat[0]` is of the data |
| qt | `q_tilde` | the same of the derivative of one output with respect to the preactivations |
| _ab | `q_ab` ... | of two samples at two different sites (convolutions only) |
| sw2, sb2 | `sigma_w2`, `sigma_b2` | variance of a weight times the fan-in, variance of a bias |
| N_{l-1}, K_l | | fan-in (channels times filter sites), number of sites |

Holds when: it does not with BatchNorm, which divides by q - q_xy and not by q (docs/evidence/errata.md, E-MF-6), nor
for convolutions (E-MF-10). Without BatchNorm the dense form is right. ReLU; statistics held constant; wide layers.
Source: Wei et al. 2019, Sections 3 and 6.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from normscope.results import plain
from normscope.theory.recursions import Layer, order_parameters, term

if TYPE_CHECKING:
    import pandas as pd

_BASE = (
    "The data have q_hat = {q0:g} and q_hat_xy = {q0_xy:g}: Section 3.1.1 prints these two the other way round "
    "(0 and 1, a correlation above 1); Claim 6.1 has them right."
)
_OUTPUT = "lambda is that of one output; with several outputs the paper's sum is not multiplied by their number."
_VARIANCE = "BatchNorm's backward recursion divides by q^l, as printed, not by the variance q^l - q_xy^l."
_MOMENT = "q_hat = gamma^2/2 with BatchNorm, as (23), (39) and (54) have it; (52) and (53) have sigma_w^2 before it."
_SUBSCRIPT = (
    "q_tilde_xy^l comes from q_tilde_xy of layer l + 1, as in (22), (25), (37), (42) and (143); Claim 6.6 and (118) "
    "print its q_tilde."
)
_WEIGHTS = (
    "Layers differ in sigma_w2: backwards it is that of layer l + 1, whose weights the gradient goes through (66)."
)
_SIGMA = "(43) prints sigma_l^l below the line; read as q^l, as in (42) and (127)."
_CONVOLUTIONS = (
    "Sites of the data are uncorrelated (q_hat_ab = 0); the paper gives no base case.",
    "q_tilde = q_tilde_xy = q_tilde_ab = 1 at the output, and the flattening changes none; the paper gives no rule.",
    "The stride does not enter: each site is taken to feed as many sites as the filter has.",
    "After flattening, the layer's fan-in is channels times sites.",
    "A dense layer has one site, and (31) no pairs of different ones to average over: its q_ab, q_hat_ab, q_tilde_ab "
    "are those of two samples, q_xy, q_hat_xy, q_tilde_xy.",
)


@dataclass(frozen=True)
class Printed:
    """Order parameters of a network of L layers, and the bound of Claim 3.1.

    Attributes:
        q, q_xy, q_tilde, q_tilde_xy, f: for layers 1 to L.
        q_hat, q_hat_xy: for layers 0 (the data) to L - 1.
        q_ab, q_hat_ab, q_tilde_ab: the same for pairs of sites; empty for dense networks.
        lambda_max: the sum of f.
        conventions: choices made where the print is silent or contradicts itself.
        notes: limits of the theory.
    """

    q: tuple[float, ...]
    q_hat: tuple[float, ...]
    q_xy: tuple[float, ...]
    q_hat_xy: tuple[float, ...]
    q_tilde: tuple[float, ...]
    q_tilde_xy: tuple[float, ...]
    q_ab: tuple[float, ...]
    q_hat_ab: tuple[float, ...]
    q_tilde_ab: tuple[float, ...]
    f: tuple[float, ...]
    lambda_max: float
    conventions: tuple[str, ...]
    notes: tuple[str, ...]

    def eta_star(self, momentum: float = 0.0) -> float:
        """eta* = 2 (1 + mu) / lambda, Eq. (7): heavy ball on 1/2 ||f - y||^2, sum over outputs, mean over samples."""
        if not isinstance(momentum, Real) or not 0 <= momentum < 1:
            raise ValueError(f"momentum is at least 0 and less than 1; got {momentum}.")
        return 2 * (1 + momentum) / self.lambda_max if self.lambda_max > 0 else math.inf

    def frame(self) -> "pd.DataFrame":
        """A table with one row for each layer l; columns that end in _in are of layer l - 1."""
        import pandas as pd

        columns: dict[str, Any] = {"layer": range(1, len(self.f) + 1)}
        columns |= {"q": self.q, "q_xy": self.q_xy, "q_hat_in": self.q_hat, "q_hat_xy_in": self.q_hat_xy}
        columns |= {"q_tilde": self.q_tilde, "q_tilde_xy": self.q_tilde_xy}
        if self.q_ab:
            columns |= {"q_ab": self.q_ab, "q_hat_ab_in": self.q_hat_ab, "q_tilde_ab": self.q_tilde_ab}
        return pd.DataFrame(columns | {"f": self.f})

    def plain(self) -> dict[str, Any]:
        """The result as plain data, for JSON."""
        return plain(asdict(self))


def dense(
    widths: Sequence[int],
    *,
    sigma_w2: float | Sequence[float] = 2.0,
    sigma_b2: float | Sequence[float] = 0.5,
    gamma: float | Sequence[float | None] | None = None,
    q0: float = 1.0,
    q0_xy: float = 0.0,
) -> Printed:
    """A fully connected ReLU network (N_0, ..., N_L) with a linear output: six order parameters, Eqs. (20) to (25).

    Args:
        widths: N_0 (the data) to N_L (the outputs).
        sigma_w2: W ~ N(0, sigma_w2 / fan-in); one number, or one for each layer. 2 is the paper's.
        sigma_b2: b ~ N(0, sigma_b2), in the same way. 0.5 is the paper's.
        gamma: of BatchNorm after each hidden layer: one number, or one for each; None without BatchNorm.
        q0, q0_xy: mean square of the data, and mean product of two samples (0 for centred data).

    Example:
        >>> paper = dense((784, 1000, 1000, 1000, 10))
        >>> round(paper.lambda_max, 2), round(paper.eta_star(0.9), 5)
        (2234.17, 0.0017)
        >>> round(dense((784, 1000, 1000, 1000, 10), gamma=1.0).lambda_max, 1)
        229.9
    """
    widths = _counts("widths", widths)
    if len(widths) < 2:
        raise ValueError(f"widths are N_0, ..., N_L, at least two numbers; got {widths}.")
    return _solve(_layers(widths[:-1], [1] * (len(widths) - 1), sigma_w2, sigma_b2, gamma), widths[1:-1], q0, q0_xy)


def convolutional(
    channels: Sequence[int],
    sites: Sequence[int],
    filters: Sequence[int],
    hidden: Sequence[int] = (),
    *,
    sigma_w2: float | Sequence[float] = 2.0,
    sigma_b2: float | Sequence[float] = 0.5,
    gamma: float | Sequence[float | None] | None = None,
    q0: float = 1.0,
    q0_xy: float = 0.0,
) -> Printed:
    """Convolutions with ReLU, then dense layers on the flattened map: nine order parameters, Eqs. (34) to (45).

    Args:
        channels: C_0 (the data) to C_n. sites: K_0 to K_n, height times width of each map.
        filters: sites of the filters of convolutions 1 to n, 9 for 3 x 3.
        hidden: widths of dense layers between the flattened map and the linear output; () in the paper.
        sigma_w2, sigma_b2, gamma, q0, q0_xy: as for `dense`.

    Example: the paper's network on MNIST (28 x 28, 3 x 3, stride 2, no padding).
        >>> mnist = dict(channels=(1, 30, 60, 90), sites=(784, 169, 36, 4), filters=(9, 9, 9))
        >>> round(convolutional(**mnist).lambda_max), round(convolutional(**mnist, gamma=1.0).lambda_max)
        (98669, 6704)
    """
    channels, sites, filters = _counts("channels", channels), _counts("sites", sites), _counts("filters", filters)
    hidden = _counts("hidden", hidden)
    if not len(channels) == len(sites) == len(filters) + 1 or not filters:
        raise ValueError(
            "channels and sites begin with those of the data and have one more entry than filters; got "
            f"{len(channels)} channels, {len(sites)} sites and {len(filters)} filters."
        )
    fans = [c * f for c, f in zip(channels[:-1], filters, strict=True)]
    dense_fans = [channels[-1] * sites[-1], *hidden]
    layers = _layers([*fans, *dense_fans], [*sites[1:], *(1 for _ in dense_fans)], sigma_w2, sigma_b2, gamma)
    return _solve(layers, (*channels[1:], *hidden), q0, q0_xy, convolutions=len(filters))


def _solve(layers: list[Layer], hidden: Sequence[int], q0: float, q0_xy: float, *, convolutions: int = 0) -> Printed:
    if not (isinstance(q0, Real) and isinstance(q0_xy, Real) and abs(q0_xy) <= q0 < math.inf):
        raise ValueError(f"The data need a finite q0 with |q0_xy| <= q0; got q0 = {q0} and q0_xy = {q0_xy}.")
    qs, hats, tildes = order_parameters(layers, q0, q0_xy, convolutions)
    f = tuple(term(layer, hat, tilde) for layer, hat, tilde in zip(layers, hats, tildes, strict=True))
    if not math.isfinite(math.fsum(f)):
        raise ValueError("lambda is beyond float64. Take fewer layers, or a smaller q0, sigma_w2 or gamma.")
    batch_norm = any(layer.gamma is not None for layer in layers)
    conventions = [_BASE.format(q0=q0, q0_xy=q0_xy), _OUTPUT, _SUBSCRIPT]
    conventions += [_WEIGHTS] if len({layer.sigma_w2 for layer in layers}) > 1 else []
    conventions += [_VARIANCE, _MOMENT] if batch_norm else []
    conventions += _CONVOLUTIONS if convolutions else ()
    conventions += [_SIGMA] if convolutions and batch_norm else []
    narrow = min(hidden, default=math.inf)
    notes = (f"A layer of width {narrow} is outside the theory's reach (30 and more).",) if narrow < 30 else ()
    (q, q_xy, q_ab), (q_hat, q_hat_xy, q_hat_ab), (q_tilde, q_tilde_xy, q_tilde_ab) = (
        tuple(zip(*series, strict=True)) for series in (qs, hats, tildes)
    )
    return Printed(
        q=q,
        q_hat=q_hat,
        q_xy=q_xy,
        q_hat_xy=q_hat_xy,
        q_tilde=q_tilde,
        q_tilde_xy=q_tilde_xy,
        q_ab=q_ab if convolutions else (),
        q_hat_ab=q_hat_ab if convolutions else (),
        q_tilde_ab=q_tilde_ab if convolutions else (),
        f=f,
        lambda_max=math.fsum(f),
        conventions=tuple(conventions),
        notes=notes,
    )


def _layers(
    fans: Sequence[int],
    sites: Sequence[int],
    sigma_w2: float | Sequence[float],
    sigma_b2: float | Sequence[float],
    gamma: float | Sequence[float | None] | None,
) -> list[Layer]:
    count = len(fans)
    weights, biases = _each("sigma_w2", sigma_w2, count), _each("sigma_b2", sigma_b2, count)
    for name, values in (("sigma_w2", weights), ("sigma_b2", biases)):
        if any(value is None or not 0 <= value < math.inf for value in values):
            raise ValueError(f"{name} is a variance, a finite number of at least 0; got {values}.")
    gammas = [*_each("gamma", gamma, count - 1), None]
    if any(value is not None and not math.isfinite(value) for value in gammas):
        raise ValueError(f"gamma is a finite number, or None without BatchNorm; got {gamma}.")
    return [Layer(*row) for row in zip(fans, sites, weights, biases, gammas, strict=True)]  # type: ignore[arg-type]


def _each(name: str, value: Any, count: int) -> list[float | None]:
    values = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value] * count
    if len(values) != count:
        raise ValueError(f"{name} is one number or one for each of {count} layers; got {len(values)}.")
    if any(each is not None and not isinstance(each, Real) for each in values):
        raise ValueError(f"{name} is one number or one for each of {count} layers; got {value!r}.")
    return [None if each is None else float(each) for each in values]


def _counts(name: str, values: Iterable[Any]) -> tuple[int, ...]:
    """The numbers as integers; refused unless whole and at least 1."""
    try:
        counts = tuple(operator.index(value) for value in values)
    except TypeError:
        counts = (0,)
    if min(counts, default=1) < 1:
        raise ValueError(f"{name} are whole numbers of at least 1; got {values!r}.")
    return counts
