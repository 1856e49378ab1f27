"""Wei et al. 2019 transcribed from the print, one equation at a time, by layer; and its dense correction.

Slow and literal on purpose. Nothing here is shared with the code.
"""

from math import asin, pi, sqrt


def _by_layer(value, layers):
    """One number for all layers 1, 2, ..., or one for each."""
    return dict(enumerate(value if isinstance(value, list) else [value] * layers, 1))


def _kappa(q, c):
    return q / (2 * pi) * (sqrt(1 - c**2) + c * pi / 2 + c * asin(c))


def dense(widths, sw2, sb2, gamma=None, q0=1.0, q0_xy=0.0):
    """Eqs. (20) to (25) and Claim 3.1; Claim 6.1 for the base cases. Every order parameter by its layer.

    Backwards the weights are those of (66), [W^{l+1}]_ki.
    """
    L = len(widths) - 1
    N = dict(enumerate(widths))
    sw2, sb2, gamma = _by_layer(sw2, L), _by_layer(sb2, L), _by_layer(gamma, L - 1)
    q, qh, qxy, qhxy, qt, qtxy = {}, {0: q0}, {}, {0: q0_xy}, {L: 1.0}, {L: 1.0}
    for layer in range(1, L + 1):
        q[layer] = sb2[layer] + sw2[layer] * qh[layer - 1]
        qxy[layer] = sb2[layer] + sw2[layer] * qhxy[layer - 1]
        if layer == L:
            break
        if gamma[layer] is None:
            qh[layer] = q[layer] / 2
            qhxy[layer] = _kappa(q[layer], qxy[layer] / q[layer])
        else:
            qh[layer] = gamma[layer] ** 2 / 2
            qhxy[layer] = gamma[layer] ** 2 / (2 * pi)
    for layer in range(L - 1, 0, -1):
        w = sw2[layer + 1]
        if gamma[layer] is None:
            c = qxy[layer] / q[layer]
            qt[layer] = w / 2 * qt[layer + 1]
            qtxy[layer] = w * qtxy[layer + 1] / (2 * pi) * (pi / 2 + asin(c))
        else:
            qt[layer] = gamma[layer] ** 2 * w / 2 * qt[layer + 1] / q[layer]
            qtxy[layer] = gamma[layer] ** 2 * w / 4 * qtxy[layer + 1] / q[layer]
    f = {layer: N[layer - 1] * qhxy[layer - 1] * qtxy[layer] for layer in range(1, L + 1)}
    return {"q": q, "q_hat": qh, "q_xy": qxy, "q_hat_xy": qhxy, "q_tilde": qt, "q_tilde_xy": qtxy, "f": f}


def convolutional(C, K, F, sw2, sb2, gamma=None, q0=1.0, q0_xy=0.0, hidden=()):
    """Eqs. (34) to (45) for convolutions 1 to n, then Eqs. (20) to (25) on the C_n K_n numbers of the last map.

    Base cases, which the paper does not give: qh_ab^0 = 0; at the output qt and qt_xy are 1. A dense layer has no pairs
    of sites, so that the map's qt_ab starts from qt_xy of the first dense layer: every site gets the same delta.
    """
    n = len(F)
    L = n + 1 + len(hidden)
    filters = dict(enumerate(F, 1))
    sw2, sb2, gamma = _by_layer(sw2, L), _by_layer(sb2, L), _by_layer(gamma, L - 1)
    q, qh = {}, {0: q0}
    qxy, qhxy = {}, {0: q0_xy}
    qab, qhab = {}, {0: 0.0}
    for layer in range(1, n + 1):
        q[layer] = sb2[layer] + sw2[layer] * qh[layer - 1]
        qxy[layer] = sb2[layer] + sw2[layer] * qhxy[layer - 1]
        qab[layer] = sb2[layer] + sw2[layer] * qhab[layer - 1]
        if gamma[layer] is None:
            qh[layer] = q[layer] / 2
            qhxy[layer] = _kappa(q[layer], qxy[layer] / q[layer])
            qhab[layer] = _kappa(q[layer], qab[layer] / q[layer])
        else:
            qh[layer] = gamma[layer] ** 2 / 2
            qhxy[layer] = qhab[layer] = gamma[layer] ** 2 / (2 * pi)
    later = range(n + 1, L + 1)
    flat = dense(
        [C[n] * K[n], *hidden, 1],
        [sw2[layer] for layer in later],
        [sb2[layer] for layer in later],
        [gamma[layer] for layer in later[:-1]],
        qh[n],
        qhxy[n],
    )
    for name, values in (("q", q), ("q_hat", qh), ("q_xy", qxy), ("q_hat_xy", qhxy)):
        values.update({n + layer: value for layer, value in flat[name].items()})
    qt = {n + layer: value for layer, value in flat["q_tilde"].items()}
    qtxy = {n + layer: value for layer, value in flat["q_tilde_xy"].items()}
    qtab = {n + 1: qtxy[n + 1]}
    for layer in range(n, 0, -1):
        w = sw2[layer + 1]
        if gamma[layer] is None:
            qt[layer] = w / 2 * qt[layer + 1]
            qtxy[layer] = w * qtxy[layer + 1] / (2 * pi) * (pi / 2 + asin(qxy[layer] / q[layer]))
            qtab[layer] = w * qtab[layer + 1] / (2 * pi) * (pi / 2 + asin(qab[layer] / q[layer]))
        else:
            qt[layer] = gamma[layer] ** 2 * w / 2 * qt[layer + 1] / q[layer]
            qtxy[layer] = gamma[layer] ** 2 * w / 4 * qtxy[layer + 1] / q[layer]
            qtab[layer] = gamma[layer] ** 2 * w / 4 * qtab[layer + 1] / q[layer]
    f = {n + layer: value for layer, value in flat["f"].items()}
    for layer in range(1, n + 1):
        N = C[layer - 1] * filters[layer]
        back = (K[layer] - 1) * qtab[layer] + qtxy[layer]
        forward = (K[layer] - 1) * qhab[layer - 1] + qhxy[layer - 1]
        f[layer] = N * back * forward
    return {
        "q": q,
        "q_hat": qh,
        "q_xy": qxy,
        "q_hat_xy": qhxy,
        "q_ab": qab,
        "q_hat_ab": qhab,
        "q_tilde": qt,
        "q_tilde_xy": qtxy,
        "q_tilde_ab": qtab,
        "f": f,
    }


def frozen_dense(width, gamma, layers=4):
    """lambda of the BatchNorm network with the statistics held constant and the variance q - q_xy (E-MF-6).

    For centred data, ReLU and one width: the first term is 0, qt_xy grows by r = pi / (2 (pi - 1)) a layer from the
    output backwards, every qh_xy is gamma^2 / (2 pi).
    """
    r = pi / (2 * (pi - 1))
    return width * gamma**2 / (2 * pi) * sum(r**k for k in range(layers - 1))
