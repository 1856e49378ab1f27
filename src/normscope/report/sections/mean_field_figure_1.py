"""Figure 1 of Wei et al. 2019: lambda_max and eta* over gamma, with and without BatchNorm."""

from collections.abc import Mapping, Sequence
from typing import Any

from normscope.report.chart import BLUE, DASHED, DOTTED, SOLID, VERMILION, Axis, Chart, Line, Panel

_COLOURS = {"batch": VERMILION, "none": BLUE}
_DASHES = {"printed": DOTTED, "corrected, frozen": DASHED, "corrected": SOLID}
_QUANTITIES = (("lambda_max", "largest eigenvalue"), ("eta_star", "largest learning rate eta*"))


def figure_1_chart(result: Mapping[str, Any]) -> Chart:
    """Four panels, as in the paper: (a) lambda_max, (b) eta* of the dense network, (c), (d) of the convolutional one.

    Args:
        result: "gamma" (a list), "momentum", and "networks": name -> curves, each with "norm" ("batch" or "none"),
            "theory" ("printed", "corrected", "corrected, frozen"), "lambda_max" and "eta_star", lists over gamma.
    """
    letters = iter("abcdefgh")
    panels = tuple(
        Panel(
            f"({next(letters)}) {name}",
            Axis("BatchNorm's gamma"),
            Axis(label, log=True),
            _lines(result["gamma"], curves, quantity),
        )
        for name, curves in result["networks"].items()
        for quantity, label in _QUANTITIES
    )
    caption = "Printed: the recursions as the paper prints them. Frozen: batch statistics held constant."
    return Chart(f"momentum {result['momentum']:g}, 1/2 squared error", caption, panels, same_y=False)


def _lines(gamma: Sequence[float], curves: Sequence[Mapping[str, Any]], quantity: str) -> tuple[Line, ...]:
    return tuple(
        Line(
            f"{'BatchNorm' if curve['norm'] == 'batch' else 'no BatchNorm'}, {curve['theory']}",
            gamma,
            curve[quantity],
            _COLOURS[curve["norm"]],
            _DASHES[curve["theory"]],
        )
        for curve in curves
    )
