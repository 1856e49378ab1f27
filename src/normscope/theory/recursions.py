r"""The recursions that seed 002 prints, from the data to the output and back; the symbols are those of `printed.py`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Of one sample, of two samples at one site, of two samples at two sites.
Moments = tuple[float, float, float]


@dataclass(frozen=True)
class Layer:
    """fan_in: N_{l-1}. sites: K_l, 1 for a dense layer. gamma: of the BatchNorm after it, None without one."""

    fan_in: int
    sites: int
    sigma_w2: float
    sigma_b2: float
    gamma: float | None


def order_parameters(
    layers: Sequence[Layer], q0: float, q0_xy: float, convolutions: int
) -> tuple[list[Moments], list[Moments], list[Moments]]:
    """q, q_hat and q_tilde. In dense layers, which have one site, the third entry repeats the second."""
    hats = [(q0, q0_xy, 0.0 if convolutions else q0_xy)]
    qs: list[Moments] = []
    for number, layer in enumerate(layers, 1):
        first_dense = number == convolutions + 1
        own, pair, sites = hats[-1]
        qs.append(_affine(layer, own, pair, pair if first_dense else sites))
        if not math.isfinite(qs[-1][0]):
            raise ValueError(f"q of layer {number} is beyond float64. Take a smaller q0, sigma_w2 or gamma.")
        if number < len(layers):
            hats.append(_forward(qs[-1], layer, number))
    tildes = [(1.0, 1.0, 1.0)]
    for q, layer, after in zip(qs[-2::-1], layers[-2::-1], layers[:0:-1], strict=True):
        tildes.insert(0, _backward(tildes[0], q, layer.gamma, after.sigma_w2))
    return qs, hats, tildes


def term(layer: Layer, hat: Moments, tilde: Moments) -> float:
    """f_l by (45), which for one site is the dense form."""
    others = layer.sites - 1
    return layer.fan_in * (others * tilde[2] + tilde[1]) * (others * hat[2] + hat[1])


def _affine(layer: Layer, own: float, pair: float, sites: float) -> Moments:
    b, w = layer.sigma_b2, layer.sigma_w2
    return b + w * own, b + w * pair, b + w * sites


def _forward(q: Moments, layer: Layer, number: int) -> Moments:
    if q[0] == 0:
        raise ValueError(
            f"Layer {number} has no variance: q = sigma_b2 + sigma_w2 q_hat is 0. Take sigma_b2 > 0, or sigma_w2 and "
            "the gamma before it above 0."
        )
    if layer.gamma is not None:
        square = layer.gamma * layer.gamma
        return square / 2, square / (2 * math.pi), square / (2 * math.pi)
    return q[0] / 2, _relu_product(q[0], _cosine(q[1], q[0])), _relu_product(q[0], _cosine(q[2], q[0]))


def _cosine(q_xy: float, q: float) -> float:
    """c_xy = q_xy / q; rounding may carry equal samples above 1."""
    return max(-1.0, min(1.0, q_xy / q))


def _relu_product(q: float, c: float) -> float:
    return q / (2 * math.pi) * (math.sqrt(1 - c * c) + c * math.pi / 2 + c * math.asin(c))


def _backward(tilde: Moments, q: Moments, gamma: float | None, sigma_w2: float) -> Moments:
    if gamma is not None:
        scale = gamma * gamma * sigma_w2 / q[0]
        return scale / 2 * tilde[0], scale / 4 * tilde[1], scale / 4 * tilde[2]
    angle, angle_ab = (math.pi / 2 + math.asin(_cosine(part, q[0])) for part in q[1:])
    scale = sigma_w2 / (2 * math.pi)
    return sigma_w2 / 2 * tilde[0], scale * angle * tilde[1], scale * angle_ab * tilde[2]
