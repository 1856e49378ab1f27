"""The theorems' right-hand sides: values known in closed form, and one message for terms that do not fit."""

import numpy as np
import pytest

from normscope.solve import convergence_bound

KNOWN = {
    "least_squares": ({"gap": 16.0}, 16.0 / 16),
    "direction": ({"gap": 16.0, "phi": 3.0, "gamma": 2.0}, 9.0 * 4.0),
    "length": ({"zeta": 3.0, "width": 4.0}, (3.0 / 1.0) ** 2 * 16.0 / 4**2),
    "halfspace": ({"gap": 16.0, "phi": 3.0, "length": 0.5}, 9.5),
    "unit": ({"gap": 16.0, "phi": 3.0}, 9.0),
}


@pytest.mark.parametrize("theorem", KNOWN)
def test_bounds_with_mu_half_of_l_after_two_steps(theorem):
    terms, expected = KNOWN[theorem]
    assert convergence_bound(theorem, 2, mu=1.0, lipschitz=2.0, **terms) == pytest.approx(expected)
    assert convergence_bound(theorem, np.arange(3), mu=1.0, lipschitz=2.0, **terms).shape == (3,)


@pytest.mark.parametrize("theorem", KNOWN)
def test_a_missing_term_and_one_too_many_are_told_the_right_ones(theorem):
    terms, _ = KNOWN[theorem]
    missing = dict(list(terms.items())[1:])
    needed = ", ".join(name for name in terms if name != "length")
    with pytest.raises(ValueError, match=f"{theorem!r} is made of mu, lipschitz, {needed}; got"):
        convergence_bound(theorem, 2, mu=1.0, lipschitz=2.0, **missing)
    other = {"zeta": 1.0} if "zeta" not in terms else {"gap": 1.0}
    with pytest.raises(ValueError, match="is made of"):
        convergence_bound(theorem, 2, mu=1.0, lipschitz=2.0, **terms, **other)


def test_a_misspelt_term_or_theorem_is_named():
    with pytest.raises(TypeError, match="fi"):
        convergence_bound("halfspace", 2, mu=1.0, lipschitz=2.0, gap=1.0, fi=1.0)
    with pytest.raises(ValueError, match="Did you mean 'halfspace'"):
        convergence_bound("halfspaces", 2, mu=1.0, lipschitz=2.0, gap=1.0, phi=1.0)
    with pytest.raises(ValueError, match="0 < mu <= L"):
        convergence_bound("least_squares", 2, mu=3.0, lipschitz=2.0, gap=1.0)
