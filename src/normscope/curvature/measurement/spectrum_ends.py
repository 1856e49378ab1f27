"""The eigenvalue searches of one measurement: what each one looked for, what it found, and its name in notes."""

from collections.abc import Sequence
from dataclasses import dataclass

from normscope.curvature.eigensolvers.lanczos import Ritz

# Names of two searches; further ones are named by their statistics or their layer.
TOP_SEARCH, HESSIAN_SEARCH = "lambda_max", "the Hessian"


@dataclass(frozen=True)
class SpectrumEnds:
    """The ends of one spectrum, and the arguments of the search that found them.

    Attributes:
        stats: the statistics mode.
        matrix: "ggn", "hessian" or "fisher".
        block: numbers of the parameters, None for all chosen ones.
        smallest: whether the smallest eigenvalue was asked for too.
        ritz: the eigenvalues and vectors found.
        error: the standard error of lambda_max of a sampled matrix, else 0.
    """

    stats: str
    matrix: str
    block: Sequence[int] | None
    smallest: bool
    ritz: Ritz
    error: float = 0.0


# The searches of a measurement, by their names.
Searches = dict[str, SpectrumEnds]


def by_statistics_name(name: str) -> str:
    """The name of the search in another statistics mode."""
    return f"statistics {name!r}"


def by_layer_name(name: str) -> str:
    """The name of the search in one layer's block."""
    return f"layer {name!r}"
