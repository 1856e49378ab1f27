r"""The rates the theorems promise, and the identities behind them.

    S, mu, L     second moment of the data and the ends of its spectrum;  q = 1 - mu/L
    rho(w)       -(u^T w)^2 / ||w||_S^2,  rho* = -u^T S^-1 u

    least squares   rho(w_t) - rho*                 <= q^(2t) (rho(w_0) - rho*)
    direction       ||w||_S^2 ||grad_w f||^2_{S^-1} <= q^(2t) Phi^2 gamma_t^2 (rho(w_0) - rho*),     Phi >= |c1|
    length          (d_gamma f)^2                   <= (zeta/mu)^2 4^-T_s |b - a|^2
    halfspaces      ||grad f(w~)||^2_{S^-1}         <= q^(2t) Phi^2 (rho(w_0) - rho*) + the length's bound
    network unit    as halfspaces, per unit, the other units on the line of S^-1 u
    Rayleigh        (l1 - rho+)/(rho+ - l2) <= (1 - (l1 - l2)/(l1 - lmin))^2 (l1 - rho)/(rho - l2),  pencil (B, A)

Differs from the source: the final halfspace bound is printed in the Euclidean norm and needs S^-1; the length's bound
is printed as 2^-T_s zeta |b - a|/mu^2, which is not scale consistent (`length_bound_printed` keeps it); the Rayleigh
rate is printed with eigenvalues of B and an exponent 2t on the right-hand side of one step.
Source: the encyclopedia article, linear convergence.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.messages.choices import check_choice
from normscope.solve.problem import Problem, Pull, Ray
from normscope.solve.second_moment import SecondMomentSpectrum

Array = NDArray[np.floating]

# The quantities in each theorem's right-hand side, beside mu and L.
TERMS = {
    "least_squares": ("gap",),
    "direction": ("gap", "phi", "gamma"),
    "length": ("zeta", "width"),
    "halfspace": ("gap", "phi"),
    "unit": ("gap", "phi"),
}


def convergence_bound(
    theorem: str,
    t: Any,
    *,
    mu: float,
    lipschitz: float,
    gap: float | None = None,
    phi: float | None = None,
    gamma: float | None = None,
    zeta: float | None = None,
    width: float | None = None,
    length: float = 0.0,
) -> Array:
    """The right-hand side of a theorem after t steps.

    Args:
        theorem: "least_squares", "direction", "length", "halfspace" or "unit".
        t: number or array; direction steps, or halvings for "length".
        mu: smallest eigenvalue of S, above 0.
        lipschitz: largest eigenvalue of S.
        gap: rho(w_0) - rho*; all but "length".
        phi: at least |c1|; "direction", "halfspace", "unit".
        gamma: the length; "direction".
        zeta: the smoothness; "length".
        width: |b - a|; "length".
        length: the length's own bound; "halfspace", "unit".

    Returns:
        The bound for each t.

    Example:
        >>> float(convergence_bound("least_squares", 2, mu=1.0, lipschitz=2.0, gap=16.0))
        1.0
    """
    check_choice("theorem", theorem, TERMS)
    numbers = {"gap": gap, "phi": phi, "gamma": gamma, "zeta": zeta, "width": width}
    terms = {name: value for name, value in numbers.items() if value is not None}
    if set(terms) != set(TERMS[theorem]):
        raise ValueError(
            f"The bound of {theorem!r} is made of mu, lipschitz, {', '.join(TERMS[theorem])}; "
            f"got {', '.join(terms) or 'none'} beside mu and lipschitz."
        )
    if not 0.0 < mu <= lipschitz:
        raise ValueError(
            f"The linear rate needs 0 < mu <= L; got mu = {mu:.3g}, L = {lipschitz:.3g}. "
            "With mu = 0 (S singular) no rate is promised; a ridge alpha > 0 gives least squares one."
        )
    t = np.asarray(t, dtype=np.float64)
    if theorem == "length":
        return (terms["zeta"] / mu) ** 2 * 4.0**-t * terms["width"] ** 2
    shrunk = (1.0 - mu / lipschitz) ** (2.0 * t) * terms["gap"]
    return shrunk * terms.get("phi", 1.0) ** 2 * terms.get("gamma", 1.0) ** 2 + length


def length_bound_printed(halvings: int, *, mu: float, zeta: float, width: float) -> float:
    """2^-T_s zeta |b - a| / mu^2, as the source prints it; fails for losses multiplied by a constant."""
    return float(2.0**-halvings * zeta * width / mu**2)


def rayleigh_rate(eigenvalues: Array, rho: float) -> float:
    """The bound on (l1 - rho+)/(rho+ - l2) after one step from rho > l2; eigenvalues are the pencil's, any order."""
    lowest, second, first = np.sort(eigenvalues)[[0, -2, -1]]
    return float((1.0 - (first - second) / (first - lowest)) ** 2 * (first - rho) / (rho - second))


def gradient_history(history: dict[str, Array], spectrum: SecondMomentSpectrum, best_rho: float) -> dict[str, Array]:
    """q^(2t) c1^2 (rho_0 - rho*) + (d_gamma f)^2, the bound on the squared S^-1 norm of the gradient, and its slack."""
    steps = np.arange(len(history["rho"]))
    bound = spectrum.rate ** (2.0 * steps) * history["c1"] ** 2 * (history["rho"][0] - best_rho)
    bound = bound + history["slope"] ** 2
    return {"bound": bound, "slack": bound - history["gradient_norm_S"] ** 2}


def identities(problem: Problem, *, rtol: float = 1e-8) -> Callable[[Ray, float, Pull], None]:
    r"""A callback for `gdnp` that checks, on every iterate,

        ||w||_S^2 ||grad rho||^2_{S^-1}   = 4 |rho| (rho - rho*)
        ||grad f(w~)||^2_{S^-1}           = ||w||_S^2 ||grad_w f||^2_{S^-1} / gamma^2 + (d_gamma f)^2
        ||w||_S^2 ||grad_w f||^2_{S^-1}   = gamma^2 c1^2 (rho - rho*)            least squares, Gaussian model

    The first two hold on all data, the third where c1 is exact (`problem.gaussian`); the last two together give
    ||grad f(w~)||^2_{S^-1} = c1^2 (rho - rho*) + (d_gamma f)^2. Relative to their values at rho = 0.
    Source: the encyclopedia article, linear convergence; `gdnp(debug=True)` runs it.

    Args:
        problem: the problem that is solved.
        rtol: largest relative difference of the two sides.

    Returns:
        The callback; it raises an ArithmeticError that names the identity that fails.
    """
    spectrum = problem.spectrum
    if not spectrum.certain or not spectrum.smallest > 0.0:
        got = "mu = 0" if spectrum.certain else f"{len(problem.u)} of them"
        raise ValueError(
            "The identities are in the S^-1 norm: they need S as a matrix (at most 128 features, the intercept's "
            f"included) and regular (mu > 0); got {got}. Take fewer features, or a ridge alpha > 0 in least squares."
        )
    best = -spectrum.inverse_square(problem.u)

    def check(ray: Ray, gamma: float, pull: Pull) -> None:
        rho, slope = -(ray.correlation**2), float(ray.w @ pull.gradient)
        grad_rho = -2.0 * ray.correlation * (problem.u - ray.correlation * pull.s_w)
        whole = spectrum.inverse_square(pull.gradient)
        across = spectrum.inverse_square(pull.gradient - slope * pull.s_w)
        sides = {
            "gradient of rho": (spectrum.inverse_square(grad_rho), 4.0 * abs(rho) * (rho - best), 4.0 * best**2),
            "gradient's two parts": (whole, across + slope**2, whole),
        }
        if problem.gaussian:
            square = pull.c1**2
            sides["gradient in w"] = (across, square * (rho - best), -square * best)
        for name, (left, right, scale) in sides.items():
            if not abs(left - right) <= rtol * scale:
                raise ArithmeticError(
                    f"The identity of the {name} fails: {left:.12g} against {right:.12g} (rtol {rtol:g})."
                )

    return check
