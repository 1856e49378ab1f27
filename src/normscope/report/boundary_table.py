"""The boundary of a sweep as a table and sentences for the terminal."""

import math
from collections.abc import Mapping

from normscope.sweeping import Distance, PhaseDiagram


def words(edge: Distance) -> str:
    """One sentence on how far eta* by theory, or by measurement, lies from the boundary."""
    if not edge.n:
        return f"{edge.name}: the boundary lies outside the grid."
    return (
        f"{edge.name}: training survives to {edge.median:+.2f} decades from eta* (median over {edge.n} values), "
        f"at worst {edge.worst:+.2f}."
    )


def boundary_columns(lines: Mapping[str, object]) -> list[str]:
    """Names of the columns of `boundary_rows`."""
    return ["value", "survives", "diverges", "log10", "+-", "rises", "best", *lines]


def boundary_rows(diagram: PhaseDiagram, lines: Mapping[str, Mapping[float, float]]) -> list[list[str]]:
    """One row for each value of the axis; the columns of `lines` hold log10(boundary / eta*)."""
    agreement = diagram.agreement(lines)

    def number(x: float, form: str = ".3g") -> str:
        return f"{x:{form}}" if math.isfinite(x) else "-"

    return [
        [
            f"{e.value:.3g}",
            number(e.survives),
            number(e.diverges),
            number(math.log10(e.diverges) if e.diverges > 0 else math.nan, ".2f"),
            number(e.resolution, ".3f"),
            number(e.rises),
            number(e.best),
            *(number(agreement[name].by_value.get(e.value, math.nan), "+.2f") for name in lines),
        ]
        for e in diagram.boundary()
    ]
