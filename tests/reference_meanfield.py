"""Seed 002 transcribed from the print, one equation at a time, with dictionaries by layer; and its dense correction.

Slow and literal on purpose. Nothing here is shared with the code.
"""

from math import asin, pi, sqrt


def dense(widths, sw2, sb2, gamma=None, q0=1.0, q0_xy=0.0):
    """Eqs. (20) to (25) and Claim 3.1; Claim 6.1 for the base cases. Every order parameter by its layer."""
    L = len(widths) - 1
    N = dict(enumerate(widths))
    q, qh, qxy, qhxy, qt, qtxy = {}, {0: q0}, {}, {0: q0_xy}, {L: 1.0}, {L: 1.0}
    for layer in range(1, L + 1):
        q[layer] = sb2 + sw2 * qh[layer - 1]
        qxy[layer] = sb2 + sw2 * qhxy[layer - 1]
        if gamma is None:
            c = qxy[layer] / q[layer]
            qh[layer] = q[layer] / 2
            qhxy[layer] = q[layer] / (2 * pi) * (sqrt(1 - c**2) + c * pi / 2 + c * asin(c))
        else:
            qh[layer] = gamma**2 / 2
            qhxy[layer] = gamma**2 / (2 * pi)
    for layer in range(L - 1, 0, -1):
        if gamma is None:
            c = qxy[layer] / q[layer]
            qt[layer] = sw2 / 2 * qt[layer + 1]
            qtxy[layer] = sw2 * qtxy[layer + 1] / (2 * pi) * (pi / 2 + asin(c))
        else:
            qt[layer] = gamma**2 * sw2 / 2 * qt[layer + 1] / q[layer]
            qtxy[layer] = gamma**2 * sw2 / 4 * qtxy[layer + 1] / q[layer]
    f = {layer: N[layer - 1] * qhxy[layer - 1] * qtxy[layer] for layer in range(1, L + 1)}
    return {"q": q, "q_hat": qh, "q_xy": qxy, "q_hat_xy": qhxy, "q_tilde": qt, "q_tilde_xy": qtxy, "f": f}


def convolutional(C, K, F, sw2, sb2, gamma=None, q0=1.0, q0_xy=0.0):
    """Eqs. (34) to (45) for convolutions 1 to n and one dense layer n + 1 on the C_n K_n numbers of the last map.

    Base cases, which the paper does not give: qh_ab^0 = 0, and 1 for all three qt at the output.
    """
    n = len(F)
    filters = dict(enumerate(F, 1))
    q, qh = {}, {0: q0}
    qxy, qhxy = {}, {0: q0_xy}
    qab, qhab = {}, {0: 0.0}
    qt, qtxy, qtab = {n + 1: 1.0}, {n + 1: 1.0}, {n + 1: 1.0}

    def kappa(q, c):
        return q / (2 * pi) * (sqrt(1 - c**2) + c * pi / 2 + c * asin(c))

    for layer in range(1, n + 1):
        q[layer] = sb2 + sw2 * qh[layer - 1]
        qxy[layer] = sb2 + sw2 * qhxy[layer - 1]
        qab[layer] = sb2 + sw2 * qhab[layer - 1]
        if gamma is None:
            qh[layer] = q[layer] / 2
            qhxy[layer] = kappa(q[layer], qxy[layer] / q[layer])
            qhab[layer] = kappa(q[layer], qab[layer] / q[layer])
        else:
            qh[layer], qhxy[layer], qhab[layer] = gamma**2 / 2, gamma**2 / (2 * pi), gamma**2 / (2 * pi)
    for layer in range(n, 0, -1):
        if gamma is None:
            qt[layer] = sw2 / 2 * qt[layer + 1]
            qtxy[layer] = sw2 * qtxy[layer + 1] / (2 * pi) * (pi / 2 + asin(qxy[layer] / q[layer]))
            qtab[layer] = sw2 * qtab[layer + 1] / (2 * pi) * (pi / 2 + asin(qab[layer] / q[layer]))
        else:
            qt[layer] = gamma**2 * sw2 / 2 * qt[layer + 1] / q[layer]
            qtxy[layer] = gamma**2 * sw2 / 4 * qtxy[layer + 1] / q[layer]
            qtab[layer] = gamma**2 * sw2 / 4 * qtab[layer + 1] / q[layer]
    f = {}
    for layer in range(1, n + 1):
        N = C[layer - 1] * filters[layer]
        back = (K[layer] - 1) * qtab[layer] + qtxy[layer]
        forward = (K[layer] - 1) * qhab[layer - 1] + qhxy[layer - 1]
        f[layer] = N * back * forward
    f[n + 1] = C[n] * K[n] * qhxy[n] * qtxy[n + 1]
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
